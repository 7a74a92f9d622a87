"""The reference policy of a KL penalty: frozen, or refreshed every `ref.update_freq` steps."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.training.batches.batch import Batch
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import Readout, TokenLogprobs
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
    ) -> None:
        """`model`: the policy where it has an adapter, else a separate model.

        `offload`: keep it in CPU memory when unused.
        """
        self.model = ModelHandle.of(model)
        self.micro_batching = micro_batching
        self.device = device
        self.offload = offload and not self.model.adapted
        if not self.model.adapted:
            self.model.module.requires_grad_(False).eval()
        self.score = TokenLogprobs(self.model, temperature=temperature)
        if self.offload:
            self.model.move("cpu")

    def limit_passes(self, tokens: int | None) -> None:
        """Let passes whose size no key sets have so many tokens."""
        self.micro_batching = self.micro_batching.of_default_size(tokens)

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs f32 [T] of the model's tokens; 0 off the mask."""
        with self.on_device(), self._base():
            return score_batch(self.score, batch.to(self.device), self.micro_batching, columns=2)[0]

    @torch.no_grad()
    def copy_from(self, policy: ModelHandle) -> None:
        """Take over the policy's weights, which are sharded in the same way."""
        theirs = policy.shards() | policy.fixed_shards()
        for name, shard in self.model.fixed_shards().items():
            local(shard.parameter).copy_(local(theirs[name].parameter))

    def state_dict(self) -> dict[str, Any]:
        """This rank's chunks of the model."""
        return {"parameters": {name: shard.local_chunk() for name, shard in self.model.fixed_shards().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name, shard in self.model.fixed_shards().items():
            shard.fill(shard.parameter, state["parameters"][name])

    def readout(self, micro: Batch) -> Readout:
        """Factors of its logits of a micro-batch, for the policy's exact KL to it."""
        with self._base():
            return self.score.readout(micro)

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
        routing, self.model.routing = self.model.routing, None
        try:
            with self.model.module.disable_adapter() if self.model.adapted else nullcontext():
                yield
        finally:
            self.model.routing = routing
