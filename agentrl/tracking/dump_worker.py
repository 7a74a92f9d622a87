"""The process behind `DumpProcess`: writes dumps until its input closes, which the end of the run does in any case.

It reads pickles: the tokenizer as JSON, then for each dump its path, lists of PackedTrajectory, and None. It answers
each dump with None, or with the reason why it cannot be written.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tokenizers import Tokenizer

from agentrl.tracking.dumps import reason, write_packed
from agentrl.tracking.packed import PackedTrajectory
from agentrl.tracking.text import TokenTexts

ENDED = (EOFError, pickle.UnpicklingError)
"""The input is closed, perhaps within a message."""


def main() -> None:
    """Serve the run on standard input and output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _serve(sys.stdin.buffer, answers)
    except (*ENDED, BrokenPipeError):
        return


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    tokenizer = Tokenizer.from_str(pickle.load(requests))
    texts = TokenTexts(lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))
    while True:
        path = Path(pickle.load(requests))
        pickle.dump(_written(path, _received(requests), texts), answers)
        answers.flush()


def _written(path: Path, trajectories: Iterator[PackedTrajectory], texts: TokenTexts) -> str | None:
    try:
        write_packed(path, trajectories, texts)
    except ENDED:
        raise
    except Exception as error:  # a full disk, a tokenizer that fails
        for _ in trajectories:  # the next dump begins after the rest of this one
            pass
        return reason(error)
    return None


def _received(requests: BinaryIO) -> Iterator[PackedTrajectory]:
    while (chunk := pickle.load(requests)) is not None:
        yield from chunk


if __name__ == "__main__":
    main()
