"""Sends a LoRA adapter to servers that have its base model, as files in peft's format.

Invariant: base model and adapter together are the policy. An adapter that engines would compute differently is refused.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.settings import ADAPTER, AdapterSpec
from agentrl.engines.servers.weights.transport import Transport
from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.export import gather_adapter, save_adapter
from agentrl.training.model.handle import ModelHandle

LORA = re.compile(r".+\.lora_[AB]\.\w+\.weight")
Placed = Callable[[], Iterable[tuple[str, Any]]]
ONE: Placed = lambda: [("", None)]  # noqa: E731
OTHERWISE = "set model.lora_merge=true, which sends whole weights"


class AdapterWeights:
    """A view of the adapter of a model that peft has wrapped, on one process or sharded over several."""

    def __init__(self, model: nn.Module | ModelHandle, *, dtype: torch.dtype | None = None) -> None:
        """`dtype`: what tensors are cast to; None leaves them. A skeleton on the meta device will do to look at
        `shape`. Raises UserError for what engines do not serve as an adapter."""
        self.model, self.dtype = ModelHandle.of(model), dtype
        _check(self.model)
        layers = {name: part for name, part in self.model.module.named_modules() if hasattr(part, "lora_A")}
        kinds = {(layer.r[name], layer.scaling[name]) for layer in layers.values() for name in layer.r}
        if len(kinds) != 1:
            raise UserError(f"model.lora_merge=false: the adapter has layers of several ranks or scales; {OTHERWISE}")
        rank, self.scale = kinds.pop()
        self.shape = AdapterSpec(rank, tuple(sorted({name.rpartition(".")[2] for name in layers})))

    @property
    def config(self) -> dict[str, Any]:
        """The contents of `adapter_config.json`, with the scale as every engine computes it: alpha / rank."""
        words = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "use_rslora": False, "use_dora": False}
        shape = self.shape
        return words | {"r": shape.rank, "lora_alpha": self.scale * shape.rank, "target_modules": list(shape.targets)}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, present value). Of a sharded model every process takes part, and the base stays where it is."""
        for name, tensor in gather_adapter(self.model).items():
            yield name, tensor.to(self.dtype or tensor.dtype)


class AdapterTransport(Transport):
    """Writes the adapters to files; servers replace theirs with them."""

    def __init__(self, weights: AdapterWeights, *, folder: Path, placed: Placed = ONE) -> None:
        """`folder`: made where needed; servers see it. `placed`: goes through the names of the policies, each of which
        has its adapter in the model then; "": the only one."""
        self.weights, self.folder, self.placed = weights, folder, placed

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Send the current adapters to the replicas."""
        names = await asyncio.to_thread(lambda: [self._written(policy) for policy, _ in self.placed()])
        for name in names:
            loads = (r.backend.load_adapter(r.http, self.folder / name, name or ADAPTER) for r in replicas)
            await asyncio.gather(*loads)

    def _written(self, name: str) -> str:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(self.weights.config))
        save_adapter(dict(self.weights.tensors()), folder)
        return name


def _check(model: ModelHandle) -> None:
    """Raises UserError when a trained parameter is no part of an adapter that engines serve."""
    parts = {"the output layer": model.base.get_output_embeddings(), "the vision tower": model.vision_tower}
    found = [name for name, p in model.module.named_parameters() if p.requires_grad and not LORA.fullmatch(name)]
    found += [name for name, part in parts.items() if part and any(p.requires_grad for p in part.parameters())]
    found += [
        f"{name}: its parameters, not its layers"
        for name, p in model.base.named_modules()
        if hasattr(p, "parameter_name")
    ]
    if found:
        fix = f"{OTHERWISE}, or with model.policies leave it out of model.target_modules"
        raise UserError(f"model.lora_merge=false: engines take no adapter of {found[0]}; {fix}")
