"""The index of a dump: small columns in a hidden file, to find one trajectory of 100,000 without reading the others.

Invariants:
- an index is made of the dump alone, and the same whether it was written along with it or built later;
- one that does not fit its dump (other size, other last bytes) is never used: it is built again;
- a folder that cannot be written to costs time, not a failure: the index then lives in memory only.
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import orjson

from agentrl.core.errors import UserError
from agentrl.core.outputs import write_atomic
from agentrl.tracking.dumps.records import Record
from agentrl.trajectory.trajectory import SpanKind

VERSION = 4
PLACE, LISTS = ("offset", "length"), ("spans", "versions")
"""Columns with the place of a line, and columns of lists."""
KINDS: tuple[str, ...] = get_args(SpanKind)
TAIL = 65536


@dataclass
class Index:
    """Columns of one dump, an entry a trajectory in the order of the file."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """`offset` and `length` of the line in bytes, without its end, and those of `_summary`."""
    position: int = 0
    """Bytes of the dump that are indexed."""

    def __len__(self) -> int:
        return len(self.columns["offset"])

    def add(self, line: bytes) -> None:
        """Take in the next line, without its end. Raises ValueError, KeyError or TypeError for no trajectory."""
        head, _, samples = line.rpartition(b'"samples":')  # their numbers are ours: orjson reads them many times faster
        summary = _summary(json.loads(head.rstrip(b", ") + b"}") | {"samples": orjson.loads(samples.strip()[:-1])})
        for name, value in {"offset": self.position, "length": len(line), **summary}.items():
            self.columns[name].append(value)
        self.position += len(line) + 1

    def save(self, dump: Path) -> None:
        """Write the index to its hidden file."""
        head = {"version": VERSION, "size": self.position, "tail": _tail(dump)}
        write_atomic(_path(dump), (_json(part) + "\n" for part in (head, self.columns)))


def read_index(dump: Path) -> Index:
    """Read the index of a dump, or build it where there is none that fits. Raises UserError for another file."""
    index = _saved(dump)
    if index is None:
        index = _built(dump)
        with suppress(OSError):
            index.save(dump)
    return index


def read_lines(dump: Path, index: Index, lines: Iterable[int]) -> Iterable[Record]:
    """The records on the given lines, counted from 0."""
    with dump.open("rb") as file:
        for line in lines:
            file.seek(index.columns["offset"][line])
            yield json.loads(file.read(index.columns["length"][line]))


def _saved(dump: Path) -> Index | None:
    with suppress(OSError, ValueError, KeyError), _path(dump).open(encoding="utf-8") as file:
        head = json.loads(file.readline())
        fits = (head["version"], head["size"], head["tail"]) == (VERSION, dump.stat().st_size, _tail(dump))
        if fits:
            return Index(defaultdict(list, json.loads(file.readline())), head["size"])
    return None


def _built(dump: Path) -> Index:
    index = Index()
    with dump.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break  # torn: it is still being written
            try:
                index.add(line[:-1])
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{dump}, line {number}, is no trajectory; fix or remove that line") from None
    return index


def _summary(record: Record) -> dict[str, Any]:
    """The columns of a record."""
    segments = [segment for sample in record["samples"] for segment in sample["segments"]]
    calls, spans = record["tool_calls"], record["spans"]
    trained = sum(segment["n"] * segment["mask"] for segment in segments)
    advantages = [run for sample in record["samples"] for run in sample["columns"].get("advantages", ())]
    return {
        **{name: record[name] for name in ("key", "uid", "sample")},
        "source": record["data_source"],
        **{name: record[name] for name in ("reward", "outcome", "finish", "turns")},
        "calls": len(calls),
        "failed": sum(call["outcome"] != "ok" for call in calls),
        "tokens": sum(segment["n"] for segment in segments),
        "trained": trained,  # tokens that the model made
        "advantage": sum(n * value for n, value in advantages) / trained if advantages and trained else None,
        "start": min((span["start"] for span in spans), default=None),  # seconds since the epoch
        "end": max((span["end"] for span in spans), default=None),
        "spans": _spans(spans),
        "versions": _versions(record),
    }


def _versions(record: Record) -> list[int]:
    """Three numbers each: turn, weight version, and how many tokens it sampled there."""
    tokens = Counter[tuple[int, int]]()
    for segment in (segment for sample in record["samples"] for segment in sample["segments"]):
        if segment["mask"]:
            tokens[segment["turn"], segment["version"]] += segment["n"]
    return list(chain.from_iterable((*drawn, n) for drawn, n in sorted(tokens.items())))


def _spans(spans: list[Record]) -> list[int]:
    """Three numbers a span: its kind as an index of KINDS, start and end in ms since the first start."""
    origin = min((span["start"] for span in spans), default=0.0)
    numbers = (
        (KINDS.index(span["kind"]), *(round((span[edge] - origin) * 1000) for edge in ("start", "end")))
        for span in spans
    )
    return list(chain.from_iterable(numbers))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=float)


def _path(dump: Path) -> Path:
    return dump.with_name(f".{dump.name}.index")


def _tail(dump: Path) -> int:
    """A checksum of the last bytes: a dump rewritten ends in other log-probs."""
    with dump.open("rb") as file:
        file.seek(max(0, dump.stat().st_size - TAIL))
        return zlib.crc32(file.read())
