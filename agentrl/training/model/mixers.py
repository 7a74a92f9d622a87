"""Recurrent layers and short convolutions of hybrid models, in packed rows.

They carry a state from token to token and know no bounds of sequences, so a packed row's sequences of about one length
are one call of theirs; attention, feed-forward layers, experts and head stay packed. Where ranks split a row's tokens,
or equal prompts are in it once, they get whole sequences first. Those whose kernels take bounds compute a whole row.

They are found by measurement: in a packed row, a part of a block changes tokens of another sequence than the one that
was changed, or fails. `packing_probe` then proves that none was missed.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from agentrl.training.model.attention.choosing import PACKING, Unpackable
from agentrl.training.model.sequences import run_apart
from agentrl.training.parallel.ulysses import gather_tokens

Forward = Callable[..., Any]


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
    """The sequences of a model's pass."""

    def __init__(self) -> None:
        self.lengths: list[int] | None = None
        """Of the sequences that have tokens on this rank, up to its last one; None: the row is not packed."""
        self.tokens = 0
        """Of the row on this rank."""
        self.seen: Any = None
        """As `expand_keys` takes it, where equal prompts are in the row once."""
        self.group: Any = None
        self.start = self.end = 0
        """Bounds of those sequences in the row of a group."""

    def begin(self, _: nn.Module, __: Any, given: dict[str, Any]) -> None:
        """Hook of the backbone: take the layout from the arguments of its forward."""
        bounds: Any = given.get("cu_seq_lens_k")
        self.seen, self.group = given.get("seen_tokens"), given.get("seq_group")
        self.lengths = None if bounds is None else bounds.diff().tolist()
        self.tokens = 0 if bounds is None else int(given["cu_seq_lens_q"][-1])
        if self.group is not None:
            self._split(bounds.tolist())

    def _split(self, bounds: list[int]) -> None:
        rank, self.tokens = torch.distributed.get_rank(self.group), self.tokens // self.group.size()
        first, self.end = rank * self.tokens, (rank + 1) * self.tokens
        self.start = max(bound for bound in bounds if bound <= first)
        ends = [bound for bound in bounds if self.start < bound < self.end] + [self.end]
        self.lengths = [end - begin for begin, end in zip([self.start, *ends], ends, strict=False)]

    @property
    def plain(self) -> bool:
        """Whether the row has all tokens of its sequences."""
        return self.seen is None and self.group is None

    def whole(self, rows: Tensor) -> Tensor:
        """From the tokens of the row [tokens, ...] to those of the sequences [T, ...]."""
        if self.group is not None:
            return gather_tokens(rows, self.group)[self.start : self.end]
        if self.seen is not None:
            flat: Tensor = torch.ops.agentrl.expand_keys(rows.flatten(1)[:, None].contiguous(), *self.seen)
            return flat.view(-1, *rows.shape[1:])
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """The reverse of `whole`."""
        if self.seen is not None:
            _, order, bounds = self.seen
            return rows[order[bounds[:-1]]]
        return rows[-self.tokens :]


class Mixer:
    """The forward of a part that mixes tokens, within each sequence."""

    def __init__(self, forward: Forward, layout: Layout, *, packs: bool) -> None:
        """`packs`: it takes a row of several sequences with their bounds."""
        self.forward, self.layout, self.packs = forward, layout, packs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.layout.lengths is None or (self.packs and self.layout.plain):
            return self.forward(*args, **kwargs)
        return self._apart(self.layout.lengths, args, kwargs)

    @torch.compiler.disable
    def _apart(self, lengths: list[int], args: Any, kwargs: Any) -> Any:
        kwargs = {name: None if "mask" in name else x for name, x in kwargs.items() if name not in PACKING}
        leaves, form = tree_flatten((args, kwargs))
        columns = {i: self.layout.whole(x[0]) for i, x in enumerate(leaves) if _is_row(x, 1, self.layout.tokens)}
        leaves = [None if isinstance(x, Tensor) and x.dtype == torch.bool else x for x in leaves]  # masks
        bounds: dict[str, Tensor] = {}
        output: Any = None

        def run(*given: Tensor) -> list[Tensor]:
            nonlocal output
            filled = dict(zip(columns, given, strict=True))
            positional, named = tree_unflatten([filled.get(i, x) for i, x in enumerate(leaves)], form)
            output = tree_flatten(self.forward(*positional, **named, **bounds)), given[0].shape[:2]
            return [x for x in output[0][0] if _is_row(x, *output[1])]

        rows = list(columns.values())
        if self.packs:
            bounds["cu_seq_lens_q"] = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(rows[0].device, torch.int32)
            found = [x[0] for x in run(*(x[None] for x in rows))]
        else:
            found = run_apart(run, rows, [lengths] * len(rows))
        (leaves, form), size = output
        joined = (self.layout.own(x)[None] for x in found)
        return tree_unflatten([next(joined) if _is_row(x, *size) else x for x in leaves], form)


def _is_row(value: Any, sequences: int, tokens: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == (sequences, tokens)


class Mixers:
    """The mixers of a model, once `search` has found them."""

    def __init__(self, backbone: nn.Module) -> None:
        self.layout = Layout()
        self.attention: set[nn.Module] = set()
        """Layers that packed attention was called for."""
        self._found: dict[nn.Module, Mixer] = {}
        self._hook = backbone.register_forward_pre_hook(self.layout.begin, with_kwargs=True)
        self._busy = False

    @contextmanager
    def search(self, blocks: Iterable[nn.Module], first: int, limit: float) -> Iterator[None]:
        """While the body passes a packed row through the model, call each outermost part of a block twice more.

        `first`: tokens of the row's first sequence. `limit`: largest relative difference of a token by rounding.
        """
        self.first, self.limit = first, limit
        parts = dict.fromkeys(part for block in blocks for part in block.modules() if part is not block)
        own = {part: vars(part).get("forward") for part in parts}
        for part in parts:
            part.forward = partial(self._call, part, part.forward)
        try:
            yield
        finally:
            for part, forward in own.items():
                del part.forward
                if (mixer := self._found.get(part, forward)) is not None:
                    part.forward = mixer
        if not self._found:
            self._hook.remove()

    def remove(self) -> None:
        """Let the model compute as before."""
        self._hook.remove()
        for part, mixer in self._found.items():
            part.forward = mixer.forward

    def _call(self, part: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if self._busy:
            return forward(*args, **kwargs)
        self._busy = True
        if (mixer := self._mixer(forward, args, kwargs)) is not None:
            self._found[part] = mixer
        output = (mixer or forward)(*args, **kwargs)
        self._busy = False
        return output

    def _mixer(self, forward: Forward, args: Any, kwargs: Any) -> Mixer | None:
        """The mixer in place of a forward that needs one. A part whose attention is packed has them inside."""
        self.attention.clear()
        try:
            right, other = (self._output(forward, args, kwargs, turned) for turned in (False, True))
        except Unpackable:
            raise
        except Exception:  # the model's own code, to which packing may be unknown
            return Mixer(forward, self.layout, packs=False)
        if right is None or other is None:
            return None
        changed = (right - other).abs().mean(-1) > self.limit * right.abs().mean(-1)
        leaks, mixes = bool(changed[self.first :].any()), bool(changed[1 : self.first - 1].any())
        attends = bool(self.attention)
        self._busy = not (leaks and attends)
        return Mixer(forward, self.layout, packs=not leaks) if (leaks or mixes) and not attends else None

    def _output(self, forward: Forward, args: Any, kwargs: Any, turned: bool) -> Tensor | None:
        """The output [T, D]; `turned`: the first sequence's first and last token have other features."""
        leaves, form = tree_flatten((args, kwargs))
        for i, x in enumerate(leaves):
            if _is_row(x, 1, self.layout.tokens) and x.is_floating_point():
                leaves[i] = x.clone()
                leaves[i][:, [0, self.first - 1]] = x[:, [0, self.first - 1]].roll(int(turned), -1)
        positional, named = tree_unflatten(leaves, form)
        found = tree_flatten(forward(*positional, **named))[0]
        row = next((x for x in found if _is_row(x, 1, self.layout.tokens)), None)
        return None if row is None else row[0].flatten(1).float()
