"""Trajectories of one split as a table: filters, order, pages. Reads indices only.

Invariant: a row is named by (step, line), which does not change while a run writes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.grouping import grouped
from agentrl.tracking.dumps.index import LISTS, PLACE, Index, read_index

Row = dict[str, Any]
Wanted = Callable[[Row], bool]

EQUAL = ("line", "outcome", "finish", "source", "uid")
RANGES = ("reward", "advantage", "turns", "calls", "failed", "tokens", "trained", "seconds", "sample")


@dataclass
class Table:
    """The dumps of one split of a run. Indices are kept; one whose dump changed is read again."""

    dumps: Callable[[], dict[int, Path]]

    def __post_init__(self) -> None:
        self._held: dict[Path, tuple[tuple[int, int], Index]] = {}

    def index(self, step: int) -> Index:
        """The index of a step's dump. Raises UserError where there is none."""
        path = self.path(step)
        stat = path.stat()
        stamp = stat.st_size, stat.st_mtime_ns
        held = self._held.get(path)
        if held is None or held[0] != stamp:
            held = self._held[path] = stamp, read_index(path)
        return held[1]

    def path(self, step: int) -> Path:
        """The dump of a step. Raises UserError where there is none."""
        dumps = self.dumps()
        if step not in dumps:
            there = f"{len(dumps)}, from {min(dumps)} to {max(dumps)}" if dumps else "none"
            raise UserError(f"step {step} has no dump; there are {there}")
        return dumps[step]

    def rows(self, query: Mapping[str, str]) -> list[Row]:
        """The rows that fit `query`, in its order.

        `step`: a number, a range 3-9, or nothing for all; `<column>`: a value; `<column>_min`, `<column>_max`: bounds;
        `text`: a piece of the conversation, exactly as written; `sort`: a column, with a minus for downwards; `group`:
        anything, for the rows of a prompt one after another, prompts in the order of their first rows.
        """
        wanted = _filter(query)
        found = [row for step in self._steps(query.get("step", "")) for row in self._of(step, query) if wanted(row)]
        if name := query.get("sort"):
            column = name.lstrip("-")
            known = [row for row in found if row.get(column) is not None]
            known.sort(key=lambda row: row[column], reverse=name.startswith("-"))
            found = known + [row for row in found if row.get(column) is None]
        return _grouped(found) if query.get("group") else found

    def means(self) -> dict[str, dict[int, float]]:
        """Mean reward of each row of the run, by step."""
        found = defaultdict[str, dict[int, float]](dict)
        for step in self.dumps():
            columns = self.index(step).columns
            scored = [pair for pair in zip(columns["uid"], columns["reward"], strict=True) if pair[1] is not None]
            for uid, pairs in grouped(scored, lambda pair: str(pair[0])).items():
                found[uid][step] = fmean(reward for _, reward in pairs)
        return found

    def _of(self, step: int, query: Mapping[str, str]) -> Iterator[Row]:
        index = self.index(step)
        lines = _holding(self.path(step), index, query["text"]) if query.get("text") else None
        shown = {name: column for name, column in index.columns.items() if name not in PLACE + LISTS}
        for line, values in enumerate(zip(*shown.values(), strict=True)):
            if lines is None or line in lines:
                row = {"step": step, "line": line, **dict(zip(shown, values, strict=True))}
                row["seconds"] = None if row["start"] is None else row["end"] - row["start"]
                yield row

    def _steps(self, asked: str) -> list[int]:
        first, _, last = asked.partition("-")
        if not first:
            return list(self.dumps())
        low, high = int(first), int(last or first)
        return [step for step in self.dumps() if low <= step <= high]


def _grouped(rows: list[Row]) -> list[Row]:
    """Each row gets `group`: how many its prompt has, and the mean of their rewards."""
    groups = grouped(rows, lambda row: str(row["uid"]))
    for members in groups.values():
        rewards = [row["reward"] for row in members if row["reward"] is not None]
        group = {"rows": len(members), "reward": sum(rewards) / len(rewards) if rewards else None}
        for row in members:
            row["group"] = group
    return [row for members in groups.values() for row in members]


def _filter(query: Mapping[str, str]) -> Wanted:
    equal = {name: set(query[name].split(",")) for name in EQUAL if query.get(name)}
    low = {name: float(query[f"{name}_min"]) for name in RANGES if query.get(f"{name}_min")}
    high = {name: float(query[f"{name}_max"]) for name in RANGES if query.get(f"{name}_max")}

    def wanted(row: Row) -> bool:
        return (
            all(str(row[name]) in values for name, values in equal.items())
            and all(row[name] is not None and row[name] >= bound for name, bound in low.items())
            and all(row[name] is not None and row[name] <= bound for name, bound in high.items())
        )

    return wanted


def _holding(path: Path, index: Index, text: str) -> set[int]:
    """The lines whose bytes hold `text`, found without parsing any."""
    needle = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode()
    with path.open("rb") as file:
        return {number for number, line in zip(range(len(index)), file, strict=False) if needle in line}
