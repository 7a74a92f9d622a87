"""Recurrent layers and short convolutions of hybrid models, in packed rows.

They carry a state from token to token and know no bounds of sequences, so a packed row's sequences of about one length
are one call of theirs; attention, feed-forward layers, experts and head stay packed. Where ranks split a row's tokens,
or equal prompts are in it once, they get whole sequences first. Those whose kernels take bounds compute a whole row.

They are found by measurement: in a packed row, a part of a block changes tokens of another sequence than the one that
was changed, or fails. `packing_probe` then proves that none was missed.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from agentrl.training.model.attention.choosing import PACKING, Unpackable
from agentrl.training.model.attention.expand import expand_keys
from agentrl.training.model.sequences import run_apart
from agentrl.training.parallel.ulysses import gather_tokens


def use_bounds(parts: Iterable[nn.Module]) -> None:
    """Let short convolutions read the bounds of a packed row, by flash-linear-attention.

    transformers' own ignore them; causal-conv1d, which it takes where it is installed, has no wheels.
    """
    for name in {type(part).__module__ for part in parts}:
        own = getattr(module := sys.modules.get(name), "causal_conv1d_fn", None)
        if own is not None and not isinstance(own, partial):
            module.causal_conv1d_fn = partial(_convolve, own)  # type: ignore[union-attr]


def _convolve(
    own: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **given: Any
) -> Any:
    """A convolution of channels first [1, D, T]; within sequences where their bounds are given."""
    if (bounds := given.get("cu_seq_lens_q")) is None:
        return own(x, weight, bias, activation=activation, **given)
    convolve = import_module("fla.modules.causal_conv1d").causal_conv1d
    rows = x.transpose(1, 2).contiguous()
    return convolve(rows, weight, bias, activation=activation, cu_seqlens=bounds)[0].transpose(1, 2)


class Layout:
    """The sequences of a model's pass, and the calls of its mixers."""

    lengths: list[int] | None = None
    """Of the sequences that have tokens on this rank, up to its last one; None: the row is not packed."""
    tokens = 0
    """Of the row on this rank."""
    seen: Any = None
    """As `expand_keys` takes it, where equal prompts are in the row once."""
    group: Any = None
    """The ranks that split a row."""
    start = end = 0
    """Bounds of those sequences in the row of a group."""

    def begin(self, _: nn.Module, __: Any, given: dict[str, Any]) -> None:
        """Hook of the backbone: take the layout from the arguments of its forward."""
        self.lengths, self.seen, self.group = None, given.get("seen_tokens"), given.get("seq_group")
        if "cu_seq_lens_k" in given:
            self.lengths = given["cu_seq_lens_k"].diff().tolist()
            self.tokens = int(given["cu_seq_lens_q"][-1])
        if self.group is not None:
            self._split(given["cu_seq_lens_k"].tolist())

    def _split(self, bounds: list[int]) -> None:
        self.tokens //= self.group.size()
        first = self.group.rank() * self.tokens
        self.start, self.end = max(bound for bound in bounds if bound <= first), first + self.tokens
        ends = [bound for bound in bounds if self.start < bound < self.end] + [self.end]
        self.lengths = [end - begin for begin, end in pairwise([self.start, *ends])]

    def whole(self, rows: Tensor) -> Tensor:
        """From the tokens of the row [tokens, ...] to those of the sequences [T, ...]."""
        if self.group is not None:
            return gather_tokens(rows, self.group)[self.start : self.end]
        if self.seen is not None:
            return expand_keys(rows.flatten(1)[None, None], *self.seen).view(-1, *rows.shape[1:])
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """The reverse of `whole`."""
        return rows[-self.tokens :] if self.seen is None else rows[self.seen[1][self.seen[2][:-1]]]

    def call(self, forward: Any, packs: bool, *args: Any, **kwargs: Any) -> Any:
        """The forward of a mixer, within each sequence. `packs`: it takes a row of several with their bounds."""
        if self.lengths is None or (packs and self.seen is None and self.group is None):
            return forward(*args, **kwargs)
        return self._apart(forward, packs, self.lengths, args, kwargs)

    @torch.compiler.disable
    def _apart(self, forward: Any, packs: bool, lengths: list[int], args: Any, kwargs: Any) -> Any:
        kwargs = {name: None if "mask" in name else x for name, x in kwargs.items() if name not in PACKING}
        leaves, form = tree_flatten((args, kwargs))
        columns = {i: self.whole(x[0]) for i, x in enumerate(leaves) if _is_row(x, 1, self.tokens)}
        leaves = [None if isinstance(x, Tensor) and x.dtype == torch.bool else x for x in leaves]  # masks
        output: Any = None

        def run(*given: Tensor, **bounds: Tensor) -> list[Tensor]:
            nonlocal output
            filled = dict(zip(columns, given, strict=True))
            positional, named = tree_unflatten([filled.get(i, x) for i, x in enumerate(leaves)], form)
            output = *tree_flatten(forward(*positional, **named, **bounds)), given[0].shape[:2]
            return [x for x in output[0] if _is_row(x, *output[2])]

        rows = list(columns.values())
        if packs:
            ends = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(rows[0].device, torch.int32)
            found = [x[0] for x in run(*(x[None] for x in rows), cu_seq_lens_q=ends)]
        else:
            found = run_apart(run, rows, [lengths] * len(rows))
        joined = (self.own(x)[None] for x in found)
        return tree_unflatten([next(joined) if _is_row(x, *output[2]) else x for x in output[0]], output[1])


def _is_row(value: Any, sequences: int, tokens: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == (sequences, tokens)


class Search:
    """Finds the mixers of a model in a pass over a packed row, which calls outermost parts of its blocks twice more."""

    def __init__(self, layout: Layout, first: int, limit: float) -> None:
        """`first`: tokens of the row's first sequence. `limit`: largest relative difference of a token by rounding."""
        self.layout, self.first, self.limit = layout, first, limit
        self.attention: set[nn.Module] = set()
        """Layers that packed attention was called for."""
        self.found: dict[nn.Module, bool] = {}
        """Mixers, and whether each takes a row of several sequences with their bounds."""
        self._busy = False

    @contextmanager
    def among(self, blocks: Iterable[nn.Module]) -> Iterator[None]:
        """While the body runs, measure the parts of these blocks; then those that were found are mixers."""
        parts = dict.fromkeys(part for block in blocks for part in block.modules() if part is not block)
        own = {part: part.forward for part in parts if "forward" not in vars(part)}
        for part, forward in own.items():
            part.forward = partial(self._call, part, forward)
        try:
            yield
        finally:
            for part in own:
                del part.forward
        for part, packs in self.found.items():
            mixer: Any = part
            mixer.layout, mixer.packs = self.layout, packs
            mixer.__class__ = _mixing(mixer.__class__)

    def undo(self) -> None:
        """Let mixers compute as before."""
        for part in self.found:
            mixer: Any = part
            mixer.__class__ = type(part).__base__
        self.found.clear()

    def _call(self, part: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if self._busy:
            return forward(*args, **kwargs)
        self._busy = True
        packs = self._packs(forward, args, kwargs)
        if packs is not None:
            self.found[part] = packs
            forward = partial(self.layout.call, forward, packs)
        output = forward(*args, **kwargs)
        self._busy = False
        return output

    def _packs(self, forward: Any, args: Any, kwargs: Any) -> bool | None:
        """Whether a mixer takes a row of several sequences; None: it is none. Packed attention may have some inside."""
        self.attention.clear()
        try:
            right, other = (self._output(forward, args, kwargs, turned) for turned in (0, 1))
        except Unpackable:
            raise
        except Exception:  # the model's own code, to which packing may be unknown
            return False
        changed = (right - other).abs().mean(-1) > self.limit * right.abs().mean(-1)
        leaks, mixes = (bool(part.any()) for part in (changed[self.first :], changed[1 : self.first - 1]))
        self._busy = not (leaks and self.attention)
        return not leaks if (leaks or mixes) and not self.attention else None

    def _output(self, forward: Any, args: Any, kwargs: Any, turned: int) -> Tensor:
        """The rows [T, D] that it returns; none where it returns none.

        `turned`: places by which features of the first sequence's first and last token are moved.
        """
        leaves, form = tree_flatten((args, kwargs))
        ends = [0, self.first - 1]
        for i, x in enumerate(leaves):
            if _is_row(x, 1, self.layout.tokens) and x.is_floating_point():
                leaves[i] = x.index_copy(1, torch.tensor(ends, device=x.device), x[:, ends].roll(turned, -1))
        positional, named = tree_unflatten(leaves, form)
        rows = [x for x in tree_flatten(forward(*positional, **named))[0] if _is_row(x, 1, self.layout.tokens)]
        return rows[0][0].flatten(1).float() if rows else torch.empty(0, 1)


@cache
def _mixing(kind: Any) -> Any:
    """The class of a mixer in packed rows. One for all of its kind, which share their compiled code."""

    @wraps(kind.forward)  # who asks for its arguments gets the layer's own
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.layout.call(partial(kind.forward, self), self.packs, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
