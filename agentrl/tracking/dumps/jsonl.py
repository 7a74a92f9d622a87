"""Files of trajectories, written and read.

Invariants: a file is complete or absent; writing it again replaces it, so a resumed run leaves what an unbroken one
leaves; its index (see `index`) is written with it.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.core.errors import UserError
from agentrl.core.outputs import write_atomic
from agentrl.tracking.dumps.index import Index
from agentrl.tracking.dumps.records import Record, trajectory_line
from agentrl.tracking.dumps.text import Decode, TokenTexts
from agentrl.trajectory.trajectory import Trajectory


def dump_file(folder: str, step: int) -> Path:
    """The file with the trajectories of a step."""
    return Path(folder) / f"{step}.jsonl"


def write_trajectories(path: Path, step: int, trajectories: Iterable[Trajectory], decode: Decode | TokenTexts) -> None:
    """Write the trajectories of `step` to `path`.

    `decode` turns token ids into text, special tokens included; as TokenTexts it remembers what it has decoded from one
    dump to the next.
    """
    index, texts = Index(), decode if isinstance(decode, TokenTexts) else TokenTexts(decode)
    write_atomic(path, _indexed((trajectory_line(step, each, texts) for each in trajectories), index))
    index.save(path)


class Appended:
    """A dump of trajectories that come one at a time. It replaces a file of that name with the first one."""

    def __init__(self, path: Path, decode: Decode) -> None:
        self.path, self.count = path, 0
        self._texts, self._index = TokenTexts(decode), Index()

    def add(self, trajectory: Trajectory) -> None:
        """Write one more, and the index."""
        with self.path.open("a" if self.count else "w", encoding="utf-8", newline="") as file:
            file.writelines(_indexed([trajectory_line(0, trajectory, self._texts)], self._index))
        self._index.save(self.path)
        self.count += 1


def load_trajectories(path: str | Path) -> list[Record]:
    """The records of a dump, as docs/tracking.md describes them. Raises UserError for another file."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            return [_parse(path, number, line) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; a dump is a file of rollout_data_dir or validation_data_dir"
        ) from None


def _indexed(lines: Iterable[bytes], index: Index) -> Iterator[str]:
    for line in lines:
        index.add(line)
        yield f"{line.decode()}\n"


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
        record["samples"], record["messages"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}, is no trajectory; fix or remove that line") from None
    return record
