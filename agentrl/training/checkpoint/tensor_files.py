"""A state's tensors in files: each rank writes the pieces it has, any number of ranks reads the runs it needs.

A file `<part>-<rank>.safetensors` holds flat runs of tensors by key, and in its header where each begins. What is not
a piece stays in the state, where `{PIECE: key, "shape": [...]}` marks a piece's place.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentrl.core.errors import UserError
from agentrl.training.parallel.shards import TensorChunk

CHUNK = "__piece__"
SUFFIX = ".safetensors"


def split(state: Any, path: str = "") -> tuple[Any, dict[str, TensorChunk]]:
    """(the state with marks for its pieces, those pieces by key): a key is the path to the piece's place."""
    if isinstance(state, TensorChunk):
        return {CHUNK: path, "shape": list(state.shape)}, {path: state}
    if not isinstance(state, dict):
        return state, {}
    plain: dict[str, Any] = {}
    chunks: dict[str, TensorChunk] = {}
    for name, value in state.items():
        plain[name], found = split(value, f"{path}/{name}" if path else str(name))
        chunks |= found
    return plain, chunks


def join(state: Any, chunks: "TensorFiles") -> Any:
    """What was split, with something to read from in each piece's place."""
    if not isinstance(state, dict):
        return state
    if CHUNK in state:
        return SavedTensor(chunks, state[CHUNK], tuple(state["shape"]))
    return {name: join(value, chunks) for name, value in state.items()}


def write(folder: Path, rank: int, chunks: dict[str, TensorChunk]) -> list[Path]:
    """Write a rank's pieces, on the CPU by now, a file for each part of the state (the first word of the keys)."""
    parts: dict[str, dict[str, TensorChunk]] = {}
    for key, chunk in chunks.items():
        if chunk.values.numel():
            parts.setdefault(key.partition("/")[0], {})[key] = chunk
    files = []
    for part, members in parts.items():
        file = folder / f"{part}-{rank:05d}{SUFFIX}"
        starts = json.dumps({key: chunk.start for key, chunk in members.items()})
        save_file({key: chunk.values for key, chunk in members.items()}, file, metadata={"starts": starts})
        files.append(file)
    return files


def to_cpu(chunks: dict[str, TensorChunk]) -> dict[str, TensorChunk]:
    """Copies of pieces, in the CPU's memory."""
    return {key: TensorChunk(p.shape, p.start, p.values.to("cpu", copy=True)) for key, p in chunks.items()}


@dataclass
class TensorFiles:
    """The files of a checkpoint."""

    folder: Path
    _runs: dict[str, list[tuple[int, int, Any]]] = field(default_factory=dict)
    """By key: (first element, elements, open file)."""

    def __post_init__(self) -> None:
        for file in sorted(self.folder.glob(f"*{SUFFIX}")):
            opened = safe_open(file, framework="pt")
            for key, start in json.loads(opened.metadata()["starts"]).items():
                self._runs.setdefault(key, []).append((start, opened.get_slice(key).get_shape()[0], opened))

    def read(self, key: str, start: int, count: int) -> Iterator[tuple[int, Tensor]]:
        """Runs that lie in the `count` elements from `start` on, each with its place among them."""
        for first, length, opened in self._runs.get(key, ()):
            low, high = max(start, first), min(start + count, first + length)
            if low < high:
                yield low - start, opened.get_slice(key)[low - first : high - first]


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in a checkpoint, read as far as it is wanted."""

    chunks: TensorFiles
    key: str
    shape: tuple[int, ...]

    def read(self, start: int, count: int) -> Tensor:
        """Elements `start` to `start + count` of the tensor, flat, on the CPU. Raises UserError where some are lost."""
        runs = list(self.chunks.read(self.key, start, count))
        if sum(run.numel() for _, run in runs) != count:
            raise UserError(f"{self.chunks.folder} lacks a part of {self.key}; resume from an older checkpoint")
        if len(runs) == 1:
            return runs[0][1]
        found = torch.empty(count, dtype=runs[0][1].dtype) if runs else torch.empty(0)
        for place, run in runs:
            found[place : place + run.numel()] = run
        return found

    def whole(self) -> Tensor:
        """All of it."""
        return self.read(0, torch.Size(self.shape).numel()).view(self.shape)
