"""The reference policy: what a KL penalty holds the policy to. It never changes during a run."""

from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.schema import Actor, Ref
from agentrl.training.batch import Batch
from agentrl.training.logprobs import TokenLogprobs
from agentrl.training.passes import Cut, cut_like, score_batch


class Reference:
    """A frozen model of its own; under LoRA the policy's own base, its adapter switched off."""

    def __init__(
        self, module: nn.Module, *, temperature: float, cut: Cut, device: torch.device, offload: bool = False
    ) -> None:
        """`module`: the policy where it has an adapter, else a model that nobody trains. `offload`: it lies in the
        CPU's memory while it has nothing to score."""
        self.module: Any = module
        self.adapter = hasattr(module, "disable_adapter")
        self.cut = cut
        self.device = device
        self.offload = offload and not self.adapter
        if not self.adapter:
            module.requires_grad_(False).eval()
        self.score = TokenLogprobs(module, temperature=temperature)
        if self.offload:
            self.module.to("cpu")

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs f32 [T] of the model's tokens; 0 off the mask."""
        batch = batch.to(self.device)
        if self.adapter:
            with self.module.disable_adapter():
                return self._scored(batch)
        if not self.offload:
            return self._scored(batch)
        self.module.to(self.device)
        try:
            return self._scored(batch)
        finally:
            self.module.to("cpu")

    def _scored(self, batch: Batch) -> Tensor:
        return score_batch(self.score, batch, self.cut, columns=2)[0]


def ref_cut(ref: Ref, actor: Actor) -> Cut:
    """Forward passes of the reference; where its own keys are null, those of the policy's update."""
    return cut_like(
        actor,
        ref.log_prob_use_dynamic_bsz,
        ref.log_prob_max_token_len_per_gpu,
        ref.log_prob_micro_batch_size_per_gpu,
    )
