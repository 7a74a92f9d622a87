"""The policy's weights in the form of a checkpoint: without adapters and tied copies, in the engine's dtype.

Invariants: names and values equal those that `save_pretrained` of the merged model writes; the module is not changed;
merged and converted tensors exist for one block of the model at a time, cast ones one at a time.
"""

import re
from collections import Counter
from collections.abc import Iterator
from copy import copy, deepcopy
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.training.model.adapter import unties
from agentrl.training.parallel.shards import saved_buffers, unwrapped

WRAPPED = "base_model.model."
"""Prefix that peft adds to the names of the wrapped model."""
BLOCK = re.compile(r"(?:[^.]+\.)*?\d+\.|")
"""The start of a tensor's name that it shares with its block; empty outside of blocks."""
WRAPPER = re.compile(r"\.base_layer|\.modules_to_save\.[^.]+")
"""Part of a buffer's name that peft adds."""
SHOWN = 3
"""Most names in an error."""


class PolicyWeights:
    """A view of a causal LM, with or without peft's adapters."""

    def __init__(self, module: Any, *, dtype: torch.dtype | None = None, check: bool = True) -> None:
        """`dtype`: of the floating-point parameters that are sent; None: their own. `check`: account for all names at
        the first pass. Raises UserError for an adapter that cannot be merged into the weights."""
        network = unwrapped(module)
        self.module = network.get_base_model() if hasattr(network, "get_base_model") else network
        self.dtype = dtype
        self._model = module
        self._unchecked = check
        self._sharded = hasattr(module, "units")
        """Whether all processes gather each tensor together."""
        self._adapted = dict(_adapted_layers(self.module)) if hasattr(module, "get_base_model") else {}
        """The outermost layers that peft has wrapped, by name."""
        self._owners = {
            f"{path}.{n}": path for path, layer in self._adapted.items() for n, _ in layer.named_parameters()
        }
        """The wrapped layer of a parameter."""
        if self._adapted and unties(self.module):
            raise UserError(
                "model.target_modules: this model's embeddings are its output layer, and an adapter of one of them "
                "cannot be folded into both; leave them out, or set rollout.name=hf"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes that are sent, or a few more."""
        shapes = getattr(self._model, "whole_shapes", None) or {n: p.shape for n, p in self._model.named_parameters()}
        return sum(shape.numel() for shape in shapes.values()) * (self.dtype or torch.float32).itemsize

    @torch.no_grad()
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name in a checkpoint, current value), one at a time; a tensor is valid until the next one.

        For a sharded model, every process iterates over all tensors, in step with the others. Raises UserError after a
        first pass that has not sent each tensor once under its name in a checkpoint: servers skip unknown names.
        """
        sent: Counter[str] = Counter()
        # A buffer such as a router's bias is in float32 in engines too.
        buffers = {tensor.data_ptr() for tensor in saved_buffers(self.module).values()}
        for state in self._states():
            for name, tensor in _as_saved(self.module, self._merged(state)).items():
                cast = self.dtype is not None and tensor.is_floating_point() and tensor.data_ptr() not in buffers
                sent[name] += 1
                yield name, tensor.to(self.dtype) if cast else tensor
        if self._unchecked:
            self._account(sent)
            self._unchecked = False

    def _account(self, sent: "Counter[str]") -> None:
        with torch.device("meta"):
            plain = type(self.module)(self.module.config)
        state = plain.state_dict()
        tied = {name: state[name] for name in plain.all_tied_weights_keys if name in state}
        wrong = (sent.keys() ^ _as_saved(self.module, state).keys()) - _as_saved(self.module, tied).keys()
        wrong |= {name for name, times in sent.items() if times > 1}
        if wrong:
            raise UserError(
                f"servers would not get each weight of this {type(self.module).__name__} once, under its name in "
                f"checkpoints: {', '.join(sorted(wrong)[:SHOWN])} ({len(wrong)} in all); set rollout.name=hf"
            )

    def _states(self) -> Iterator[dict[str, Tensor]]:
        """The module's own tensors, each once: block by block, or for a sharded model unit by unit."""
        if self._sharded:
            prefix = WRAPPED if self._adapted else ""
            for unit in self._model.units():
                yield {name.removeprefix(prefix): tensor for name, tensor in unit.items()}
            return
        seen: set[tuple[int, torch.Size]] = set()
        for _, named in groupby(self.module.state_dict().items(), lambda item: BLOCK.match(item[0])[0]):  # type: ignore[index]  # it matches nothing too
            state: dict[str, Tensor] = {}
            for name, tensor in named:
                place = (tensor.data_ptr(), tensor.shape)
                if place not in seen or not tensor.numel():  # tied: the engine ties them as well
                    state[name] = tensor
                seen.add(place)
            yield state

    def _merged(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors with the adapter merged into them, under their names in the model without peft."""
        plain = {
            WRAPPER.sub("", n): t for n, t in state.items() if n not in self._owners and ".original_module." not in n
        }
        for path in dict.fromkeys(self._owners[name] for name in state if name in self._owners):
            layer = _merged_layer(self._adapted[path])
            plain |= {f"{path}.{name}": parameter.detach() for name, parameter in layer.named_parameters()}
        return plain


def _adapted_layers(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in module.named_children():
        if hasattr(part, "base_layer") or hasattr(part, "original_module"):
            yield prefix + name, part
        else:
            yield from _adapted_layers(part, f"{prefix}{name}.")


def _merged_layer(layer: Any) -> Any:
    """A copy of a layer as `merge_and_unload` leaves it."""
    try:
        if hasattr(layer, "original_module"):  # trained as a whole
            return deepcopy(layer).unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        layer = _copied(layer)
        while hasattr(layer, "base_layer"):
            layer.merge()
            layer = layer.base_layer
    except (RuntimeError, ValueError, NotImplementedError) as error:  # kinds of adapters that peft does not merge
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(f"the adapter cannot be merged into a server's weights: {error}; set rollout.name=hf") from None
    return layer


def _copied(layer: Any) -> Any:
    """A layer with copies of what merging changes; `deepcopy` takes milliseconds for each."""
    new = copy(layer)
    if hasattr(layer, "base_layer"):
        new.merged_adapters = list(layer.merged_adapters)
        new._modules = layer._modules | {"base_layer": _copied(layer.base_layer)}
    else:
        own = {name: p for name, p in layer._parameters.items() if p is not None}
        new._parameters = layer._parameters | {n: nn.Parameter(p.clone(), requires_grad=False) for n, p in own.items()}
    return new


def _as_saved(module: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as checkpoints have them, where transformers keeps others in memory (such as fused experts)."""
    from transformers.core_model_loading import revert_weight_conversion  # takes seconds to import

    saved: dict[str, Tensor] = revert_weight_conversion(module, dict(state))
    return saved
