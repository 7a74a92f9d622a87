"""The frozen reference policy of a KL penalty."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.training.batches.batch import Batch
from agentrl.training.model.head.logprobs import Readout, TokenLogprobs
from agentrl.training.update.micro_batches import MicroBatching, score_batch


class Reference:
    """A frozen copy of the initial policy; with LoRA the policy itself with its adapter disabled."""

    def __init__(
        self,
        module: nn.Module,
        *,
        temperature: float,
        micro_batching: MicroBatching,
        device: torch.device,
        offload: bool = False,
    ) -> None:
        """`module`: the policy where it has an adapter, else a separate model.

        `offload`: keep it in CPU memory when unused.
        """
        self.module: Any = module
        self.adapter = hasattr(module, "disable_adapter")
        self.micro_batching = micro_batching
        self.device = device
        self.offload = offload and not self.adapter
        if not self.adapter:
            module.requires_grad_(False).eval()
        self.score = TokenLogprobs(module, temperature=temperature)
        if self.offload:
            self.module.to("cpu")

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs f32 [T] of the model's tokens; 0 off the mask."""
        with self.on_device(), self._base():
            return score_batch(self.score, batch.to(self.device), self.micro_batching, columns=2)[0]

    def readout(self, micro: Batch) -> Readout:
        """Factors of its logits of a micro-batch, for the policy's exact KL to it."""
        with self._base():
            return self.score.readout(micro)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep an offloaded model on the device while the body runs."""
        if self.offload:
            self.module.to(self.device)
        try:
            yield
        finally:
            if self.offload:
                self.module.to("cpu")

    def _base(self) -> AbstractContextManager[Any]:
        return self.module.disable_adapter() if self.adapter else nullcontext()
