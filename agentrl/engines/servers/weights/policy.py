"""The policy's weights in the form of a checkpoint: without adapters and tied copies, in the engine's dtype.

Invariants: names and values equal those that `save_pretrained` of the merged model writes; the module is not changed;
merged and converted tensors exist for one block of the model at a time, cast ones one at a time.
"""

import re
from collections import Counter
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.training.model.adapter import unties
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.towers import as_saved, tensors_left_out

WRAPPED = "base_model.model."
"""Prefix that peft adds to the names of the wrapped model."""
WRAPPER = re.compile(r"\.base_layer|\.modules_to_save\.[^.]+")
"""Part of a buffer's name that peft adds."""
SHOWN = 3
"""Most names in an error."""


class PolicyWeights:
    """A view of a causal LM, with or without peft's adapters."""

    def __init__(self, model: nn.Module | ModelHandle, *, dtype: torch.dtype | None = None, check: bool = True) -> None:
        """`dtype`: of the floating-point parameters that are sent; None: their own. `check`: account for all names at
        the first pass. Raises UserError for an adapter that cannot be merged into the weights."""
        self._model = ModelHandle.of(model)
        self.module = self._model.base
        self.dtype = dtype
        self._unchecked = check
        self._adapted = dict(_adapted_layers(self.module)) if self._model.adapted else {}
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
        shapes = self._model.whole_shapes.values()
        return sum(shape.numel() for shape in shapes) * (self.dtype or torch.float32).itemsize

    @torch.no_grad()
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name in a checkpoint, current value), one at a time; a tensor is valid until the next one.

        For a sharded model, every process iterates over all tensors, in step with the others. Raises UserError after a
        first pass that has not sent each tensor once under its name in a checkpoint: servers skip unknown names.
        """
        sent: Counter[str] = Counter()
        # A buffer such as a router's bias is in float32 in engines too.
        buffers = {tensor.data_ptr() for tensor in self._model.saved_buffers().values()}
        for state in self._states():
            for name, tensor in as_saved(self.module, self._merged(state)).items():
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
        unsent = {name: state[name] for name in plain.all_tied_weights_keys if name in state}
        unsent |= tensors_left_out(self.module)
        wrong = (sent.keys() ^ as_saved(self.module, state).keys()) - as_saved(self.module, unsent).keys()
        wrong |= {name for name, times in sent.items() if times > 1}
        if wrong:
            raise UserError(
                f"servers would not get each weight of this {type(self.module).__name__} once, under its name in "
                f"checkpoints: {', '.join(sorted(wrong)[:SHOWN])} ({len(wrong)} in all); set rollout.name=hf"
            )

    def _states(self) -> Iterator[dict[str, Tensor]]:
        """The model's tensors, each once, by their names in the model without peft: block by block."""
        # Adapters are merged in their own dtype.
        for unit in self._model.units(None if self._adapted else self.dtype):
            yield {name.removeprefix(WRAPPED) if self._adapted else name: tensor for name, tensor in unit.items()}

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
