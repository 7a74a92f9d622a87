"""Commands under `agentrl verl` that are not programs of verl's: `ray job submit`, and code on verl's own trainer."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from types import TracebackType

THEIRS = ("verl", "recipe")


def job_words(argv: Sequence[str]) -> list[str]:
    """`ray job submit ... -- COMMAND` with `agentrl verl` before the command, which runs on another machine."""
    words = list(argv)
    if not words or PurePath(words[0]).name != "ray" or words[1:3] != ["job", "submit"] or "--" not in words:
        return words
    at = words.index("--") + 1
    return words if words[at : at + 2] == ["agentrl", "verl"] else [*words[:at], "agentrl", "verl", *words[at:]]


def explain_missing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """One line where code asks for a module of verl's that agentrl does not have; a traceback for all else."""
    name = (error.name or "") if isinstance(error, ImportError) else ""
    if name.partition(".")[0] not in THEIRS:
        sys.__excepthook__(kind, error, trace)
        return
    asked = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<")]
    place = f"{asked[-1].filename}:{asked[-1].lineno} " if asked else ""
    sys.stderr.write(
        f"error: {place}asks for {name}, which agentrl does not have ({error}): what is built on verl's own trainer or "
        "workers has to be written for agentrl's; docs/from-verl.md says what runs\n"
    )
