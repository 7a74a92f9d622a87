"""The policy's weights as a checkpoint would hold them: no adapters, no tied copies, in the engine's dtype.

Invariant: names and values are those that `save_pretrained` of the merged model would write; the module itself is not
changed, and no more than one merged or cast tensor is made at a time, but where fused experts must be taken apart.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from agentrl.core.errors import UserError

BASE = ".base_layer."
WRAPPED = "base_model.model."
"""What peft puts before the names of the model that it wraps."""


class PolicyWeights:
    """A view of a causal LM, bare or wrapped by peft's LoRA."""

    def __init__(self, module: Any, *, dtype: torch.dtype | None = None) -> None:
        """`dtype`: what floating-point tensors are cast to; None leaves them. Raises UserError for an adapter that
        cannot be folded into the weights."""
        self.module = module.get_base_model() if hasattr(module, "get_base_model") else module
        self.dtype = dtype
        self._sharded = module if hasattr(module, "units") else None
        """A model spread over processes, which have to meet for each tensor."""
        self._adapted = hasattr(module, "get_base_model")
        if self._adapted:
            self._check_tied()
        if self._sharded is not None:
            return
        self._state = {name: tensor for name, tensor in self._read() if ".lora_" not in name}
        saved = _as_saved(self.module, self._state)
        mine = {tensor.untyped_storage().data_ptr() for tensor in self._state.values()}
        self._rebuilt = any(tensor.untyped_storage().data_ptr() not in mine for tensor in saved.values())
        """Whether a checkpoint's tensors are copies, made anew each time, rather than views that follow the policy."""
        if not self._rebuilt:
            self._state = saved

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        if self._sharded is not None:
            return next(self._sharded.parameters()).device
        return next(iter(self._state.values())).device

    @property
    def num_bytes(self) -> int:
        """Bytes on their way."""
        if self._sharded is not None:
            return int(self._sharded.num_bytes)
        return sum(t.numel() * (self.dtype or t.dtype).itemsize for t in self._state.values())

    @torch.no_grad()
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name in a checkpoint, present value), one at a time, good until the next is asked for.

        Of a sharded model every process that has a part of it goes through all of them, in step with the others.
        """
        for state in self._states():
            for name, tensor in state.items():
                if BASE in name:
                    tensor = self._merged(name, tensor)
                if self.dtype is not None and tensor.is_floating_point():
                    tensor = tensor.to(self.dtype)
                yield name.replace(BASE, "."), tensor

    def _check_tied(self) -> None:
        """Raises UserError where the adapter parts what the engine takes for one: input and output embeddings."""
        parts = self.module.get_input_embeddings(), self.module.get_output_embeddings()
        tied = self.module.config.get_text_config().tie_word_embeddings
        if tied and any(p.requires_grad for part in parts if part is not None for p in part.parameters()):
            raise UserError(
                "model.target_modules: this model's embeddings are its output layer, and an adapter of one of them "
                "cannot be folded into both; leave them out, or set rollout.name=hf"
            )

    def _states(self) -> Iterator[dict[str, Tensor]]:
        """The tensors as checkpoints name them: all at once, or of a sharded model unit by unit."""
        if self._sharded is None:
            yield _as_saved(self.module, self._state) if self._rebuilt else self._state
            return
        for unit in self._sharded.units():
            own = {name.removeprefix(WRAPPED) if self._adapted else name: t for name, t in unit.items()}
            yield _as_saved(self.module, {name: t for name, t in own.items() if ".lora_" not in name})

    def _read(self) -> Iterator[tuple[str, Tensor]]:
        """The module's own tensors, each once, with wrappers of whole modules looked through."""
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
    """The names that checkpoints use, where transformers holds tensors otherwise (fused experts, say)."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    saved: dict[str, Tensor] = revert_weight_conversion(module, dict(state))
    return saved
