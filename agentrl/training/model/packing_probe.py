"""Finds out on the loaded model whether its sequences can be packed into one row.

A packed row has one random sequence several times, each time after another neighbour; the model's own attention also
computes the sequence alone. Where the copies differ, or differ from the sequence alone, a run computes one sequence a
pass. All that makes models differ is within these few tokens:
- attention windows, which are shortened for the probe; a window may be known to a layer or to the mask alone;
- a last neighbour at positions far beyond the pretraining's, for which some rotary embeddings change the frequencies
  of the whole row;
- tokens marked as an image, within which attention may be bidirectional.

Invariant: the answer does not depend on rounding. Copies are compared by the two that are nearest to each other, and
with the sequence alone by the median token: a router of experts may choose otherwise for some.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.chat.media.inputs import TYPES, parameters
from agentrl.core.replaced import replaced
from agentrl.training.batches.batch import bounds_of
from agentrl.training.model.adapter import first_line
from agentrl.training.model.attention.choosing import packing_arguments, use_own_attention, use_packed_attention
from agentrl.training.model.handle import TOLERANCE, ModelHandle
from agentrl.training.model.mixers import Layout, Search, use_bounds
from agentrl.training.perf.compiling import uncompiled

log = logging.getLogger(__name__)

COPIES, NEIGHBOUR, LENGTH = 4, 12, 24
FAR = 16
"""The last neighbour's position, as a multiple of the longest sequence that the model is made for."""
WINDOW = 8
"""Tokens of an attention window during the probe, for models whose windows are longer."""
COARSE = 1e-2
"""The tolerance of float32 where products may be of TensorFloat32."""


def pack_where_exact(model: ModelHandle, device: torch.device) -> bool:
    """Switch a model to packed attention where that changes no value; returns whether it did. Collective."""
    network, ranks, layout = model.base, model.ranks, Layout()
    if not use_packed_attention(network):
        reason: str | None = "its attention is code of its own"
    else:
        hook = network.base_model.register_forward_pre_hook(layout.begin, with_kwargs=True)
        search = Search(layout, NEIGHBOUR, _limit(model.dtype, device))
        reason = _difference(model, device, search)
        if ranks.max_over_ranks(int(reason is not None)):
            use_own_attention(network)
            search.undo()
            reason = reason or "it differs on another rank"
        if not search.found:
            hook.remove()
    if reason is not None and ranks.first:
        log.warning("%s: one sequence a pass, not packed: %s", type(network).__name__, reason)
    return reason is None


@torch.no_grad()
def _difference(model: ModelHandle, device: torch.device, search: Search) -> str | None:
    """The change that packing makes, in words; None: it only rounds. Mixers are found before."""
    row, limit = Row(model, device), search.limit
    if device.type == "cuda" and find_spec("fla") is not None:
        use_bounds(model.base.modules())
    try:
        with uncompiled(), short_windows(model.base, WINDOW):
            with search.among(block for _, block in model.blocks()):
                model.run_gathered(partial(row.packed, search.attention.add))
            copies = model.run_gathered(row.packed)
            use_own_attention(model.base)
            alone = model.run_gathered(row.alone)
            use_packed_attention(model.base)
    except Exception as error:  # the model's own code, to which packing may be unknown
        model.recover()
        return first_line(error)
    # By the two that are nearest to each other; one kernel computes copies.
    leak = torch.stack([_errors(a, b) for a, b in combinations(copies, 2)]).amin(0).max()
    other = torch.stack([_errors(copy, alone) for copy in copies]).amin(0).median()
    if not leak <= limit / 10:
        return f"the sequences of a row change each other's values by {leak:.1%}"
    return None if other <= limit else f"a sequence in a row differs from itself alone by {other:.1%}"


def _limit(dtype: torch.dtype, device: torch.device) -> float:
    """The largest difference that is rounding."""
    coarse = dtype == torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return COARSE if coarse else TOLERANCE.get(dtype, COARSE)


def _errors(output: Tensor, expected: Tensor) -> Tensor:
    """Difference of each token's output over its size."""
    return (output - expected).abs().mean(-1) / expected.abs().mean(-1)


class Row:
    """The tokens of the probe, through a model's backbone."""

    def __init__(self, model: ModelHandle, device: torch.device) -> None:
        self.model, self.device = model, device
        config = model.config.get_text_config()
        self.lengths = [NEIGHBOUR, LENGTH] * COPIES + [NEIGHBOUR]
        middle = config.vocab_size // 4  # special tokens are at the ends of a vocabulary
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(middle, 3 * middle + 1, (COPIES + 1, NEIGHBOUR), generator=draw).to(device)
        self.ids = torch.randint(middle, 3 * middle + 1, (LENGTH,), generator=draw).to(device)
        self.row = torch.cat([part for own in ids[:-1] for part in (own, self.ids)] + [ids[-1]])
        self.positions = torch.cat([torch.arange(length) for length in self.lengths]).to(device)
        self.positions[-NEIGHBOUR:] += _far(model.base, config)
        marks = TYPES if model.vision_tower is not None else ()
        self.marked = next((name for name in marks if name in parameters(type(model.base))), None)

    def packed(self, probing: Callable[[nn.Module], object] | None = None) -> list[Tensor]:
        """Outputs [LENGTH, H] of each copy in the row; `probing` is called with layers of packed attention."""
        bounds, kernel = bounds_of(self.lengths).to(self.device), self.model.attention_kernel(self.device)
        packing = packing_arguments(bounds, max(self.lengths), kernel=kernel)
        outputs = self._outputs(self.row, self.positions, **packing, probing=probing)
        return list(outputs.split(self.lengths))[1::2]

    def alone(self) -> Tensor:
        return self._outputs(self.ids, torch.arange(LENGTH, device=self.device), use_cache=False)

    def _outputs(self, ids: Tensor, positions: Tensor, **arguments: Any) -> Tensor:
        if self.marked is not None:
            arguments[self.marked] = ((positions >= 2) & (positions < LENGTH - 2)).long()[None]
        return self.model.hidden(ids, positions[None], **arguments).float()


def _far(model: Any, config: Any) -> int:
    """A position far beyond those of the pretraining; 0 for a model that reads positions from a table."""
    longest = getattr(config, "max_position_embeddings", None) or 0
    inputs = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not inputs]
    return 0 if any(longest <= m.num_embeddings <= longest + 8 for m in tables) else FAR * longest


def short_windows(model: PreTrainedModel, length: int) -> AbstractContextManager[None]:
    """While the body runs, attention windows and chunks that are longer have `length` tokens."""
    owners = (model.config, model.config.get_text_config(), *model.modules())
    windows = ((vars(owner), name, size) for owner in owners for name, size in _windows(owner))
    return replaced((attributes, name, length) for attributes, name, size in windows if size > length)


def _windows(owner: object) -> Iterator[tuple[str, int]]:
    """Names and tokens of the attention windows of a layer or a configuration."""
    for name, value in vars(owner).items():
        if ("window" in name or "attention_chunk" in name) and type(value) is int:
            yield name, value
