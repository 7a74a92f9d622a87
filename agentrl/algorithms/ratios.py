"""Ratios of probabilities, from their logarithms."""

from torch import Tensor

# exp() of more than this says nothing but overflow; every clip has long cut the gradient there.
MAX_LOG_RATIO = 20.0


def ratio_of(logprobs: Tensor, others: Tensor) -> Tensor:
    """exp(logprobs - others), kept finite."""
    return (logprobs - others).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
