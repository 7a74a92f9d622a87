"""Tensors of a checkpoint in files: each rank writes its chunks, any number of ranks reads the elements it needs.

A file `<part>-<rank>.safetensors` has flat chunks of tensors by key; its header has the first element of each. In the
state, `{CHUNK: key, "shape": [...]}` stands for a chunk; everything else stays in the state.
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
from torch.utils._pytree import tree_map, tree_map_with_path

from agentrl.core.errors import UserError
from agentrl.training.parallel.shards import TensorChunk

CHUNK = "__piece__"
SUFFIX = ".safetensors"


def split(state: Any) -> tuple[Any, dict[str, TensorChunk]]:
    """(the state with a mark for each chunk, the chunks by key). A key is the path of the chunk in the state."""
    chunks: dict[str, TensorChunk] = {}

    def mark(path: Any, value: Any) -> Any:
        if not isinstance(value, TensorChunk):
            return value
        key = "/".join(str(part.key) for part in path)
        chunks[key] = value
        return {CHUNK: key, "shape": list(value.shape)}

    return tree_map_with_path(mark, state), chunks


def join(state: Any, chunks: "TensorFiles") -> Any:
    """The state that was split, with a `SavedTensor` for each mark."""

    def saved(value: Any) -> Any:
        return SavedTensor(chunks, value[CHUNK], tuple(value["shape"])) if isinstance(value, dict) else value

    return tree_map(saved, state, is_leaf=lambda value: isinstance(value, dict) and CHUNK in value)


def write(folder: Path, rank: int, chunks: dict[str, TensorChunk]) -> list[Path]:
    """Write a rank's chunks (CPU tensors): one file for each part of the state, the first word of the keys."""
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
    """Copies of chunks in CPU memory."""
    return {key: TensorChunk(p.shape, p.start, p.values.to("cpu", copy=True)) for key, p in chunks.items()}


@dataclass
class TensorFiles:
    """The tensor files of a checkpoint."""

    folder: Path
    _chunks: dict[str, list[tuple[int, int, Any]]] = field(default_factory=dict)
    """By key: (first element, elements, open file)."""

    def __post_init__(self) -> None:
        for file in sorted(self.folder.glob(f"*{SUFFIX}")):
            opened = safe_open(file, framework="pt")
            for key, start in json.loads(opened.metadata()["starts"]).items():
                self._chunks.setdefault(key, []).append((start, opened.get_slice(key).get_shape()[0], opened))

    def read(self, key: str, start: int, count: int) -> Iterator[tuple[int, Tensor]]:
        """The stored values among the `count` elements from `start` on: (offset from `start`, flat values)."""
        for first, length, opened in self._chunks.get(key, ()):
            low, high = max(start, first), min(start + count, first + length)
            if low < high:
                yield low - start, opened.get_slice(key)[low - first : high - first]


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in a checkpoint, read in part or whole."""

    chunks: TensorFiles
    key: str
    shape: tuple[int, ...]

    def read(self, start: int, count: int) -> Tensor:
        """Elements `start` to `start + count` of the tensor, flat, on the CPU. Raises UserError for missing ones."""
        parts = list(self.chunks.read(self.key, start, count))
        if sum(part.numel() for _, part in parts) != count:
            raise UserError(f"{self.chunks.folder} lacks a part of {self.key}; resume from an older checkpoint")
        if len(parts) == 1:
            return parts[0][1]
        found = torch.empty(count, dtype=parts[0][1].dtype) if parts else torch.empty(0)
        for offset, part in parts:
            found[offset : offset + part.numel()] = part
        return found

    def whole(self) -> Tensor:
        """The whole tensor."""
        return self.read(0, torch.Size(self.shape).numel()).view(self.shape)
