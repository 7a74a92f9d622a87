"""Ratios of probabilities, from their logarithms."""

from torch import Tensor

# A larger exponent only overflows; every clip cuts the gradient long before.
MAX_LOG_RATIO = 20.0


def ratio_of(logprobs: Tensor, others: Tensor) -> Tensor:
    """exp(logprobs - others), bounded to stay finite."""
    return (logprobs - others).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
