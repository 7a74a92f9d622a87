"""Entropy of next-token distributions."""

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(`logits` [..., V]): f32 [...]. A logit of -inf has probability 0."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    probabilities = logprobs.exp()
    # The gradient of entr(p) is infinite at p = 0; times a probability of 0 it is NaN.
    return -(probabilities * torch.where(probabilities > 0, logprobs, 0.0)).sum(-1)
