"""Entropy of next-token distributions."""

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(`logits` [..., V]): f32 [...]. A logit of -inf has probability 0."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    return torch.special.entr(logprobs.exp()).sum(-1)
