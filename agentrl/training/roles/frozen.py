"""The reference policy of a KL penalty: frozen, or refreshed every `ref.update_freq` steps."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.replaced import replaced
from agentrl.training.batches.batch import Batch
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import Logits, TokenLogprobs
from agentrl.training.parallel.shards import local
from agentrl.training.update.micro_batches import MicroBatching, score_batch


class Reference:
    """A frozen copy of the initial policy; with LoRA the policy itself with its adapter disabled."""

    def __init__(
        self,
        model: nn.Module | ModelHandle,
        *,
        temperature: float,
        micro_batching: MicroBatching,
        device: torch.device,
        offload: bool = False,
        as_is: bool = False,
    ) -> None:
        """`model`: the policy where it has an adapter, else a separate model.

        `offload`: keep it in CPU memory when unused. `as_is`: its weights are not touched and an adapter is part of it:
        another model, or the policy of the present.
        """
        self.model, self.as_is = ModelHandle.of(model), as_is
        self.micro_batching = micro_batching
        self.device = device
        self.offload = offload and not self.model.adapted
        if not (self.model.adapted or as_is):
            self.model.module.requires_grad_(False).eval()
        self.score = TokenLogprobs(self.model, temperature=temperature)
        if self.offload:
            self.model.move("cpu")

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs f32 [T] of the model's tokens; 0 off the mask."""
        with self.on_device(), self._base():
            return score_batch(self.score, batch.to(self.device), self.micro_batching, columns=2)[0]

    @torch.no_grad()
    def copy_from(self, policy: ModelHandle, keep: float = 0.0) -> None:
        """Take over the policy's weights, which are sharded in the same way, but for a share to `keep`."""
        theirs = policy.shards() | policy.fixed_shards()
        for name, shard in self.model.fixed_shards().items():
            mine, new = local(shard.parameter), local(theirs[name].parameter)
            if keep and mine.is_floating_point():
                mine.lerp_(new.to(mine), 1 - keep)
            else:
                mine.copy_(new)

    def state_dict(self) -> dict[str, Any]:
        """This rank's chunks of the model."""
        return {"parameters": {name: shard.local_chunk() for name, shard in self.model.fixed_shards().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name, shard in self.model.fixed_shards().items():
            shard.fill(shard.parameter, state["parameters"][name])

    def logits(self, batch: Batch, targets: Tensor | None = None, size: int = 0) -> Logits:
        """Its logits, for a comparison of the policy with it; arguments as of `TokenLogprobs.logits`."""
        with self._base():
            return self.score.logits(batch, targets, size)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep an offloaded model on the device while the body runs."""
        if self.offload:
            self.model.move(self.device)
        try:
            yield
        finally:
            if self.offload:
                self.model.move("cpu")

    @contextmanager
    def _base(self) -> Iterator[None]:
        """In the body, a policy computes without its adapter, and routes by itself: it is another policy."""
        without = self.model.adapted and not self.as_is
        adapter = self.model.module.disable_adapter() if without else nullcontext()
        with replaced([(vars(self.model), "routing", None)]), adapter:
            yield
