"""The policy's weights in the form of a checkpoint: without adapters and tied copies, in the engine's dtype.

Invariants: names and values equal those that `save_pretrained` of the merged model writes; the module is not changed;
at most one merged or cast tensor exists at a time, except when fused experts are split.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from agentrl.core.errors import UserError

BASE = ".base_layer."
WRAPPED = "base_model.model."
"""Prefix that peft adds to the names of the wrapped model."""


class PolicyWeights:
    """A view of a causal LM, with or without peft's LoRA."""

    def __init__(self, module: Any, *, dtype: torch.dtype | None = None) -> None:
        """`dtype`: of the floating-point tensors that are sent; None: their own. Raises UserError for an adapter that
        cannot be merged into the weights."""
        self.module = module.get_base_model() if hasattr(module, "get_base_model") else module
        self.dtype = dtype
        self._sharded = module if hasattr(module, "units") else None
        """A sharded model: all processes gather each tensor together."""
        self._adapted = hasattr(module, "get_base_model")
        if self._adapted:
            self._check_tied()
        if self._sharded is not None:
            return
        self._state = {name: tensor for name, tensor in self._read() if ".lora_" not in name}
        saved = _as_saved(self.module, self._state)
        mine = {tensor.untyped_storage().data_ptr() for tensor in self._state.values()}
        self._rebuilt = any(tensor.untyped_storage().data_ptr() not in mine for tensor in saved.values())
        """Whether the tensors are copies, to be made again for each update, and not views of the policy."""
        if not self._rebuilt:
            self._state = saved

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        if self._sharded is not None:
            return next(self._sharded.parameters()).device
        return next(iter(self._state.values())).device

    @property
    def num_bytes(self) -> int:
        """Bytes that are sent."""
        if self._sharded is not None:
            return int(self._sharded.num_bytes)
        return sum(t.numel() * (self.dtype or t.dtype).itemsize for t in self._state.values())

    @torch.no_grad()
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name in a checkpoint, current value), one at a time; a tensor is valid until the next one.

        For a sharded model, every process iterates over all tensors, in step with the others.
        """
        for state in self._states():
            for name, tensor in state.items():
                if BASE in name:
                    tensor = self._merged(name, tensor)
                if self.dtype is not None and tensor.is_floating_point():
                    tensor = tensor.to(self.dtype)
                yield name.replace(BASE, "."), tensor

    def _check_tied(self) -> None:
        """Raises UserError when the adapter changes only one of the tied input and output embeddings."""
        parts = self.module.get_input_embeddings(), self.module.get_output_embeddings()
        tied = self.module.config.get_text_config().tie_word_embeddings
        if tied and any(p.requires_grad for part in parts if part is not None for p in part.parameters()):
            raise UserError(
                "model.target_modules: this model's embeddings are its output layer, and an adapter of one of them "
                "cannot be folded into both; leave them out, or set rollout.name=hf"
            )

    def _states(self) -> Iterator[dict[str, Tensor]]:
        """The tensors under their names in a checkpoint: all at once, or unit by unit for a sharded model."""
        if self._sharded is None:
            yield _as_saved(self.module, self._state) if self._rebuilt else self._state
            return
        for unit in self._sharded.units():
            own = {name.removeprefix(WRAPPED) if self._adapted else name: t for name, t in unit.items()}
            yield _as_saved(self.module, {name: t for name, t in own.items() if ".lora_" not in name})

    def _read(self) -> Iterator[tuple[str, Tensor]]:
        """The module's own tensors, each once, without the wrappers of whole modules."""
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self.module.state_dict().items():
            if ".original_module." in name:
                continue
            head, _, tail = name.partition(".modules_to_save.")
            place = (tensor.data_ptr(), tensor.shape)
            if place in seen and tensor.numel():
                continue  # tied: the engine ties them as well
            seen.add(place)
            yield (f"{head}.{tail.partition('.')[2]}" if tail else name), tensor

    def _merged(self, name: str, tensor: Tensor) -> Tensor:
        owner, _, leaf = name.partition(BASE)
        layer = self.module.get_submodule(owner)
        if leaf != "weight" or layer.disable_adapters or layer.merged:
            return tensor
        for adapter in layer.active_adapters:
            if adapter not in layer.lora_A and adapter not in layer.lora_embedding_A:
                continue
            if getattr(layer, "use_dora", {}).get(adapter):
                raise UserError("DoRA cannot be folded into an engine's weights: set rollout.name=hf, or plain LoRA")
            tensor = tensor + layer.get_delta_weight(adapter).to(tensor.dtype)
        return tensor


def _as_saved(module: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as checkpoints have them, where transformers keeps others in memory (such as fused experts)."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    saved: dict[str, Tensor] = revert_weight_conversion(module, dict(state))
    return saved
