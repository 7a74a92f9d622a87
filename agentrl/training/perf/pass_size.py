"""Tokens of a forward and backward pass that fit into a GPU's memory, by the model's shape."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.training.model.sizes import ModelSizes, sizes_of

if TYPE_CHECKING:
    import torch

MOST = 65536
"""Tokens from which on a larger pass is no faster."""
ENOUGH = 16384
"""Tokens up to which a larger pass gains more than kept logits do."""
ROUND = 1024
USED = {True: 0.85, False: 0.75}
"""Share of the free memory that a pass may take: fragments, kernels' workspaces and images are not in the estimate. By
whether the process is alone, so that a pass which does not fit can be split."""
COMPILED = 0.55
"""Share of a block's activations that stay when it is compiled."""
ROUTED = 3
"""Rows of a token that the backward pass needs for each of its experts: before the products, after them, and back at
the token's rank."""
UNITS = 2
"""Blocks of a sharded model that are whole at one time."""
CHUNK = 1 << 30
"""Bytes of logits that are not kept, and of tensors made of logits, at one time on a GPU."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer that its activations depend on."""

    sizes: ModelSizes
    kept: int
    """Layers that the backward pass reaches."""
    normed: bool
    """Whether queries and keys are normalised."""


def shape_of(config: Any, trained: Iterable[str], names: Iterable[str]) -> Shape:
    """The shape of a model. `config`: transformers' configuration; `names`: of its parameters, `trained`: of those
    that get a gradient."""
    sizes = sizes_of(config)
    return Shape(sizes, sizes.layers - _first_trained(trained), any("q_norm" in name for name in names))


def activation_bytes(
    shape: Shape, *, narrow: bool, compiled: bool, checkpointing: bool, offloaded: bool = False
) -> float:
    """Bytes that the backward pass needs of a token; `narrow`: where layers compute in two bytes, and norms in four.
    `offloaded`: on the GPU alone, of activations that wait in CPU memory.

    Counted on transformers' Llama, Qwen3 and Qwen3-MoE. A layer of experts has a row of each token for each of its
    experts, three times, which no compilation saves.
    """
    sizes, (hidden, inner, keys) = shape.sizes, ((32, 8, 4) if narrow else (36, 16, 8))
    norms = (6 if narrow else 8) * (sizes.queries + sizes.keys) * shape.normed
    block = float(hidden * sizes.hidden + inner * sizes.inner + keys * sizes.keys + norms)
    if compiled:
        block *= COMPILED
    if sizes.experts > 1:
        block += ROUTED * (2 if narrow else 4) * sizes.experts * sizes.active_experts * sizes.hidden
    if offloaded:
        return UNITS * block  # one that computes, one whose tensors are copied
    return 4.0 * sizes.layers * sizes.hidden + block if checkpointing else shape.kept * block


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of a token of a pass."""

    activations: float
    logits: float = 0.0
    """Where they may be kept for the backward pass."""


def tokens_that_fit(room: float, each: TokenBytes, longest: int, *, alone: bool) -> int:
    """Tokens of a pass in `room` bytes; at least the `longest` sequence, which cannot be split.

    A pass keeps the logits of all its tokens, where it has ENOUGH tokens with them.
    """
    space = _usable(room, alone)
    without, kept = (int(space / size) // ROUND * ROUND for size in (each.activations, each.activations + each.logits))
    return max(min(max(kept, min(without, ENOUGH)), MOST), longest)


def logits_that_fit(room: float, each: TokenBytes, tokens: int, *, alone: bool) -> int:
    """Tokens, of a pass of so many, whose logits can be kept in `room` bytes."""
    left = _usable(room, alone) - tokens * each.activations
    return max(min(int(left / each.logits), tokens), 0) if each.logits else 0


def _usable(room: float, alone: bool) -> float:
    return max(room - CHUNK, 0.0) * USED[alone]


def free_memory(device: "torch.device") -> float:
    """Bytes of a GPU that this process can still take."""
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + cached)


def _first_trained(names: Iterable[str]) -> int:
    """Number of the first layer with something to train; 0 where the embeddings have."""
    numbers = [re.search(r"\.layers\.(\d+)\.", name) for name in names]
    return min((int(found[1]) if found else 0 for found in numbers), default=0)
