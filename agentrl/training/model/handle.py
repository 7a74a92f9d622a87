"""A loaded model: its network, and the facts about it that training needs.

Training asks the handle, and nothing looks for attributes of the network. A new fact (experts, recurrent mixers,
towers) belongs here, found on the loaded network and not in a list of names.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cached_property
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.training.model.adapter import place
from agentrl.training.model.attention.choosing import is_packed
from agentrl.training.model.attention.varlen import attention_kernel, shares_keys
from agentrl.training.model.compute_copies import ComputeCopies
from agentrl.training.model.routing import Routing
from agentrl.training.model.sizes import ModelSizes, sizes_of
from agentrl.training.model.towers import tower_of
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.shards import Shard
from agentrl.training.perf.compiled_block import Compiled
from agentrl.training.perf.flops import ModelFlops, model_flops
from agentrl.training.perf.offload import offloaded_activations

T = TypeVar("T")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference by rounding, over the size, between two ways to compute the same values."""
HALF = (torch.bfloat16, torch.float16)
BLOCK = re.compile(r"(?:[^.]+\.)*?\d+\.|")
"""The start of a tensor's name that it shares with its block; empty outside of blocks."""


class ModelHandle:
    """A model that one process has whole. `ShardedModel` is one that several processes share."""

    sharded = False
    """Whether ranks share the parameters: methods that read whole tensors are then collective."""
    keeps_gathered = True
    """Whether each rank has memory for the whole model and its gradients."""

    def __init__(
        self,
        module: nn.Module,
        *,
        compute_dtype: torch.dtype | None = None,
        log_prob_kernels: str | None = "triton",
        offloads_activations: bool = False,
    ) -> None:
        """`module`: a transformers model, maybe wrapped by peft; shared, not copied.

        `compute_dtype`: of the layers' arithmetic; None: the parameters' own. `log_prob_kernels`: triton or torch;
        None: the model computes its logits itself. `offloads_activations`: to CPU memory until the backward pass.
        """
        from peft import PeftModel  # takes seconds to import

        self.module: Any = module
        self.adapted = isinstance(module, PeftModel)
        """Whether peft has wrapped the model: only its adapter is trained."""
        self.base: Any = module.get_base_model() if isinstance(module, PeftModel) else module
        """The transformers model, without peft's wrapper."""
        self.ranks: Ranks = ALONE
        self.compute_dtype = compute_dtype
        self.log_prob_kernels = log_prob_kernels
        self.offloads_activations = offloads_activations
        self.compiled: Compiled | None = None
        """The state of compiled blocks; None: the model is not compiled."""
        self.routing: Routing | None = None
        """The routers whose choices are replayed; None: every token is routed by itself."""
        self._copies: ComputeCopies | None = None
        self.flops = 0.0
        """FLOPs of all passes so far; of one that ranks split, all of it."""

    @classmethod
    def of(cls, model: "nn.Module | ModelHandle") -> "ModelHandle":
        """The handle itself; a new one for a transformers model, which computes in the dtype of its parameters."""
        return model if isinstance(model, ModelHandle) else cls(model)

    @property
    def config(self) -> Any:
        """The transformers configuration."""
        return self.base.config

    @cached_property
    def sizes(self) -> ModelSizes:
        """Layers, heads and widths."""
        return sizes_of(self.config)

    @cached_property
    def cost(self) -> ModelFlops:
        """FLOPs of a token."""
        return model_flops(self.whole_shapes, self.config)

    def count(self, lengths: list[int], scored: int, repeated: list[int]) -> None:
        """Count a forward pass, and where autograd is on its backward pass. Arguments: see `ModelFlops`."""
        passes = self.cost.update if torch.is_grad_enabled() else self.cost.forward
        self.flops += passes(lengths, scored, repeated)

    @property
    def packs(self) -> bool:
        """Whether a pass computes packed sequences; `pack_where_exact` finds out."""
        return is_packed(self.base)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that layers compute in."""
        dtype: torch.dtype = self.compute_dtype or self.base.dtype
        return dtype

    @property
    def in_half(self) -> bool:
        """Whether layers compute in half precision under autocast."""
        return self.compute_dtype in HALF

    @property
    def head(self) -> Any:
        """The output layer, without what plain LoRA adds to it (see `head_lora`); None where there is none."""
        head = self.base.get_output_embeddings()
        plain = hasattr(head, "lora_A") and not head.lora_variant and not any(head.lora_bias.values())
        return head.base_layer if plain else head

    @property
    def head_lora(self) -> tuple[Any, Any, float] | None:
        """The layers A and B that the active adapter adds to the output layer, and their scale; None without any."""
        head, name = self.base.get_output_embeddings(), getattr(self.module, "active_adapter", None)
        if name not in getattr(head, "lora_A", ()) or head.disable_adapters:
            return None
        return head.lora_A[name], head.lora_B[name], head.scaling[name]

    @property
    def vision_tower(self) -> nn.Module | None:
        """The network that reads images; None for a text model, and where it is left out."""
        return tower_of(self.base, "image")

    @property
    def runs_compiled(self) -> bool:
        """Whether the blocks are compiled, and that works."""
        return self.compiled is not None and self.compiled.works

    def attention_kernel(self, device: torch.device) -> str:
        """The name of the kernel that computes attention on a device: fa4 or fa2."""
        return attention_kernel(device, *self.sizes.attention)

    def shares_keys(self, device: torch.device) -> bool:
        """Whether that kernel computes the last tokens of sequences alone, as passes with shared prompts do."""
        return shares_keys(self.attention_kernel(device), device, *self.sizes.attention)

    def hidden(self, ids: Tensor, positions: Tensor, **arguments: Any) -> Tensor:
        """The outputs [T, H] of the backbone for `ids` [T] at positions [1, T], or [3, 1, T]."""
        found = self.base.base_model(input_ids=ids[None], position_ids=positions, **arguments)
        output: Tensor = getattr(found, "last_hidden_state", found[0])[0]
        return output

    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The transformer blocks by name, inner ones first: modules that must stay on one device."""
        models = [part for part in self.module.modules() if isinstance(part, PreTrainedModel)]
        kinds = {kind for part in models for kind in part._no_split_modules or ()}
        named = reversed(list(self.module.named_modules()))
        # Sharding derives a class of the block's.
        return [(name, child) for name, child in named if name and type(child).__name__.removeprefix("FSDP") in kinds]

    def train(self) -> None:
        """Let blocks recompute activations, where that is on. All else computes as when it samples: there are routers
        that add noise in training mode."""
        for part in self.module.modules():
            part.training = hasattr(part, "gradient_checkpointing")

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """Let layers compute in `dtype` from now on."""
        self.compute_dtype = dtype
        if dtype == torch.float32:
            self.module.float()  # autocast narrows, it does not widen

    def use_compute_copies(self) -> None:
        """From now on, layers that compute in half precision do so with copies of their trained weights."""
        if self.compute_dtype is not None and self.in_half:
            self._copies = ComputeCopies(self.module, self.base.get_input_embeddings(), self.compute_dtype)

    def computing(self) -> AbstractContextManager[None]:
        """Context in which layers have the copies that they compute with."""
        return nullcontext() if self._copies is None else self._copies.in_place()

    def clear_copies(self) -> None:
        """Forget gradients of copies that a failed backward pass has left."""
        if self._copies is not None:
            self._copies.clear()

    def run_gathered(self, function: Callable[[], T]) -> T:
        """`function()`, which may run any part of the model, in the dtype that it computes in. Collective."""
        with offloaded_activations(self.offloads_activations):
            return self._run(function)

    def _run(self, function: Callable[[], T]) -> T:
        if not self.in_half:
            return function()
        device = next(self.module.parameters()).device
        with self.computing(), torch.autocast(device.type, self.compute_dtype):
            return function()

    def recover(self) -> None:
        """Make the model ready again after a pass that failed alike on all ranks. Collective."""

    def set_no_sync(self, on: bool) -> None:
        """Between micro-batches of an optimizer step, a sharded model may stay gathered; this one always is."""

    def move(self, device: torch.device | str) -> None:
        """Move the model to another device."""
        self.module.to(device)

    def described(self, network: Any) -> AbstractContextManager[None]:
        """Within the body a network of this model has parameters of whole sizes, maybe without values: peft reads there
        what size an adapter has."""
        return nullcontext()

    def with_adapter(self, network: Any) -> "ModelHandle":
        """A handle of the model with an adapter that it got later, which every rank has whole. `network`: peft's."""
        handle = copy(self)
        handle.module, handle.adapted = network, True
        return handle

    def place(self, parameters: dict[str, Any]) -> None:
        """Have the model compute with other parameters of the same shapes, which are sharded like its own."""
        place(self.module, parameters)

    def shards(self) -> dict[str, Shard]:
        """This process's chunk of each parameter, by the plain model's names."""
        first = self.ranks.first
        return {name: Shard(p, tuple(p.shape), written=first) for name, p in self.module.named_parameters()}

    def trainable_shards(self) -> dict[str, Shard]:
        """The chunks of the trained parameters."""
        return {name: shard for name, shard in self.shards().items() if shard.parameter.requires_grad}

    def fixed_shards(self) -> dict[str, Shard]:
        """All else that a checkpoint needs: saved buffers, and frozen parameters but those of an adapter's base."""
        frozen = {} if self.adapted else {n: s for n, s in self.shards().items() if not s.parameter.requires_grad}
        buffers = self.saved_buffers().items()
        return frozen | {name: Shard(b, tuple(b.shape), written=self.ranks.first) for name, b in buffers}

    def saved_buffers(self) -> dict[str, Tensor]:
        """The buffers that belong to a model's files, by name; every rank has them whole."""
        saved = self.module.state_dict().keys()
        return {name: tensor for name, tensor in self.module.named_buffers() if name in saved}

    @property
    def whole_shapes(self) -> dict[str, torch.Size]:
        """Unsharded shape of each parameter, by its plain name."""
        return {name: p.shape for name, p in self.module.named_parameters()}

    def gather_trainable(self) -> dict[str, Tensor]:
        """The whole trainable parameters. For adapters, which fit in memory as a whole. Collective."""
        return {name: shard.parameter.detach() for name, shard in self.trainable_shards().items()}

    def units(self, dtype: torch.dtype | None = None) -> Iterator[dict[str, Tensor]]:
        """Every tensor of the model once, by its name, one block at a time; valid until the next block. A sharded model
        gathers floating-point parameters in `dtype`. Collective."""
        seen: set[tuple[int, torch.Size]] = set()
        for _, named in groupby(self.module.state_dict().items(), lambda item: BLOCK.match(item[0])[0]):  # type: ignore[index]  # it matches nothing too
            state: dict[str, Tensor] = {}
            for name, tensor in named:
                identity = (tensor.data_ptr(), tensor.shape)
                if identity not in seen or not tensor.numel():  # a tied tensor has one name only
                    state[name] = tensor
                seen.add(identity)
            yield state
