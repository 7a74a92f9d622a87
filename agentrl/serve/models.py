"""The training side of `agentrl serve`: many models on one base, with weights, optimizer and gradients of their own.

Invariants:
- every rank calls every method in the same order, with all of its data, and gets all of its result;
- adapters of one shape share a slot, which is an adapter of peft: a model's tensors are in it while the model computes.
  So models never change each other, and blocks are compiled once for a shape;
- a call that raises leaves every model as it was.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from inspect import signature
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.engines.launching import launch
from agentrl.serve.contract import Adam, AdapterShape, Datum, PassResult
from agentrl.serve.losses import TARGETS, loss_of, pack_data
from agentrl.serve.tenant import Tenant
from agentrl.training import device_for, load_processor, load_tokenizer, tune_cpu
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.model.adapter import linear_layers, new_adapter, place
from agentrl.training.model.loading import float32_masters
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.roles.making import Roles

# Arguments of the parts of a block that mix tokens: attention and recurrent layers.
MIXES = {"attention_mask", "cache_params"}


class Models:
    """Trains many models over one base. One thread calls it; each method raises UserError for a bad request.

    Calls come one after another, in the order of each model's log.
    """

    launch = staticmethod(launch)
    """Starts servers for samples."""

    def __init__(self, config: Config, ranks: Ranks = ALONE) -> None:
        """Load the base, `config.model`, which is sharded over `ranks`.

        `config.actor`: sizes of passes, number formats, kind of optimizer. `config.model.lora_alpha`: of all adapters;
        32 by default, as in Thinking Machines' experiments (LoRA Without Regret, 2025). Raises UserError.
        """
        model = replace(config.model, lora_rank=0, target_parameters=None)
        trainer = replace(config.trainer, val_only=True)  # so the base stays as it is stored
        rollout = replace(config.rollout, n=2)  # clients send groups
        config = replace(config, model=model, trainer=trainer, rollout=rollout)
        self.roles = Roles(config, device_for(config.trainer.device), ranks)
        if self.roles.device.type == "cpu":
            tune_cpu()
        self.processor = load_processor(config.model, load_tokenizer(config.model))
        self.tenants, self.kind = dict[str, Tenant](), self.roles.device.type
        self._passes: dict[str, Iterator[PassResult | None]] = {}
        self._load_base(self.roles)
        if self.base.adapted:
            raise UserError("model.path is an adapter; serve its base, or a merged model (agentrl merge)")
        self._linear = linear_layers(self.base.base)[0]

    def _load_base(self, roles: Roles) -> None:
        self.base = roles.policy()
        self.base.module.requires_grad_(not roles.config.trainer.val_only)
        self._network = self.base.module

    def create(self, model: str, shape: AdapterShape) -> None:
        """Add a model that computes as the base."""
        hidden = self.base.sizes.hidden
        alone = [name for name, tenant in self.tenants.items() if not (shape.rank and tenant.slot)]
        if model in self.tenants or alone:
            raise UserError(f"unload {(*alone, model)[0]} first: names differ, and a model of rank 0 is alone")
        if not 0 <= shape.rank <= hidden or (shape.rank and not self._targets(shape)):
            raise UserError(f"{shape}: set a rank of 1 to {hidden} and layers to adapt, or 0 to train all weights")
        slot, tensors = None, dict[str, nn.Parameter]()
        if not shape.rank:
            self._train_base()
            handle = copy(self.base)
        else:
            slot = self._slot(shape)
            handle = self.base.with_adapter(self._network)
            tensors = self._new_tensors(slot, shape.seed)
        self.tenants[model] = Tenant(handle, self.roles, slot, tensors)

    def begin(self, model: str, *given: Any, backward: bool) -> None:
        """Have `proceed` carry out a `forward_backward` of a model."""
        self._passes[model] = self.forward_backward(model, *given, backward=backward)

    def proceed(self, model: str) -> PassResult | None:
        """Compute a micro-batch of what has begun: None before the last one, then the result."""
        result = next(self._passes[model])
        if result is not None:
            del self._passes[model]  # with its tokens on the device
        return result

    def forward_backward(
        self, model: str, data: Sequence[Datum], loss: str, settings: Mapping[str, float], *, backward: bool
    ) -> Iterator[PassResult | None]:
        """Compute a loss of LOSSES, summed over tokens and data; with `backward` add its gradients to those before.

        Yields None between two micro-batches, where calls for other models may come, and the result at the end.
        """
        tenant, (chosen, function) = self._tenant(model), loss_of(loss, settings)
        text = self.base.config.get_text_config()
        longest: Any = self.roles.config.rollout.max_model_len or getattr(text, "max_position_embeddings", sys.maxsize)
        batch = pack_data(data, chosen, vocabulary=text.vocab_size, longest=longest)
        passes = tenant.compute(batch, function, backward=backward)
        while (report := next(passes)) is None:
            yield None
            self._place(tenant.slot, tenant.tensors)
        shapes = [datum.columns[TARGETS].shape for datum in data]
        found = {i: own for part in self.roles.ranks.gather(report.logprobs()) for i, own in part.items()}
        logprobs = [found[i][:, : (*s, 1)[1]].reshape(s).numpy() for i, s in enumerate(shapes)]
        total = self.roles.ranks.sum(float(report.value))
        yield PassResult(logprobs, {"loss:sum": total, "loss_tokens:sum": float(batch.mask.sum())})

    def optim_step(self, model: str, adam: Adam) -> dict[str, float]:
        """Take a step with the gradients so far and clear them; returns their norm and the steps skipped so far."""
        return self._tenant(model).step(adam)

    def save(self, model: str, folder: Path) -> None:
        """Write weights, optimizer state and gradients so far into `folder`, as a whole or not at all."""
        checkpoints.begin(folder, 0, self._tenant(model).state_dict(), ranks=self.roles.ranks)()

    def load(self, model: str, folder: Path, *, optimizer: bool) -> None:
        """Restore what `save` wrote of a model of this shape; without `optimizer` the model starts afresh with its
        weights."""
        state = checkpoints.load(folder / "global_step_0", ranks=self.roles.ranks)[1]
        self._tenant(model).load_state_dict(state if optimizer else {"parameters": state["parameters"]})

    def export(self, model: str, folder: Path) -> None:
        """Write weights to sample from: an adapter as peft saves it, or a model with its tokenizer."""
        self._tenant(model).export(folder)

    def remove(self, model: str) -> None:
        """Forget a model; where all weights were trained, the base has those of its files again."""
        tenant, _ = self.tenants.pop(model, None), self._passes.pop(model, None)
        if tenant is None or tenant.slot:
            return
        if self.base.sharded:
            self._load_base(self.roles)
            return
        for own, stored in zip(self.base.module.parameters(), self.roles.policy().module.parameters(), strict=True):
            own.data, own.grad = stored.data, None
        torch.autograd.graph.increment_version(list(self.base.module.requires_grad_(False).parameters()))

    def _train_base(self) -> None:
        """Let all weights of the base be trained, in one process in place: samplers may read them. It has no slots
        then."""
        if self.base.sharded:
            config = self.roles.config
            trained = replace(config, trainer=replace(config.trainer, val_only=False))
            self._load_base(replace(self.roles, config=trained))
            return
        if self._network is not self.base.module:
            self._network = self._network.unload()
        self.base.module.requires_grad_(True)
        float32_masters(self.base)

    def _tenant(self, model: str) -> Tenant:
        """A model, whose tensors are in its slot then."""
        if (tenant := self.tenants.get(model)) is None:
            raise UserError(f"there is no model {model}; create it first")
        self._place(tenant.slot, tenant.tensors)
        return tenant

    def _place(self, slot: str | None, tensors: dict[str, nn.Parameter]) -> None:
        if slot and self._network.active_adapter != slot:
            self._network.set_adapter(slot)
        place(self._network, tensors)

    def _new_tensors(self, slot: str, seed: int) -> dict[str, nn.Parameter]:
        """The tensors of a new adapter, as peft begins one; they are in the slot."""
        self._place(slot, {})
        named, generator = self._network.named_parameters(), torch.Generator(self.roles.device).manual_seed(seed)
        device = self.roles.device
        tensors = {n: nn.Parameter(torch.zeros_like(p, device=device)) for n, p in named if p.requires_grad}
        for name, tensor in tensors.items():
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(tensor, a=sqrt(5), generator=generator)
        self._place(slot, tensors)
        return tensors

    def _slot(self, shape: AdapterShape) -> str:
        """The slot for a shape, which is made for the first adapter of it."""
        parts = [part for part in ("attention", "mlp", "unembed") if getattr(shape, part)]
        slot = "-".join([f"rank{shape.rank}", *parts])
        if slot not in getattr(self._network, "peft_config", ()):
            settings = replace(self.roles.config.model, lora_rank=shape.rank, target_modules=self._targets(shape))
            with self.base.described(self._network):
                self._network = new_adapter(self._network, settings, name=slot)
        return slot

    def _targets(self, shape: AdapterShape) -> list[str]:
        """The names of the layers that get an adapter."""
        blocks = [(f"{n}.{own}.", part) for n, block in self.base.blocks() for own, part in block.named_children()]
        mixers = tuple(name for name, part in blocks if MIXES & signature(type(part).forward).parameters.keys())
        found = [n for n in self._linear if (shape.attention if n.startswith(mixers) else shape.mlp)]
        output = self.base.base.get_output_embeddings()
        head = [n for n, part in self.base.base.named_modules() if part is output]
        return found + head * shape.unembed
