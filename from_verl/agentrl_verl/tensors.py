"""Padding, positions, and sums over a mask, for functions written for verl that make their own tensors."""

from typing import Any

import torch
from torch import Tensor


def compute_position_id_with_mask(mask: torch.Tensor) -> torch.Tensor:
    """Positions that begin at 0 with the first token; `mask` [B, T] is 0 at padding."""
    return torch.clip(mask.cumsum(-1) - 1, min=0)


def postprocess_data(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    max_length: int,
    pad_token_id: int,
    left_pad: bool = True,
    truncation: str = "error",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`input_ids` and `attention_mask` [1, T], padded or cut to [1, max_length].

    Raises ValueError for what is too long under truncation=error.
    """
    from agentrl.data import truncate

    length = input_ids.shape[-1]
    if length > max_length and truncation == "error":
        raise ValueError(f"{length} tokens are over max_length={max_length}; set data.truncation, or raise the limit")
    kept = torch.tensor(truncate(list(range(length)), max_length, truncation), dtype=torch.long)
    missing = max_length - len(kept)
    padding = (missing, 0) if left_pad else (0, missing)
    pad = torch.nn.functional.pad
    return pad(input_ids[..., kept], padding, value=pad_token_id), pad(attention_mask[..., kept], padding, value=0)


SMALL = 1e-8
"""Keeps an empty mask from dividing by 0."""


def masked_sum(values: Tensor, mask: Tensor, axis: Any = None) -> Tensor:
    """The sum over the mask, of all or along `axis`; values off the mask may be NaN."""
    return (torch.where(mask.bool(), values, 0.0) * mask).sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: Any = None) -> Tensor:
    """The mean over the mask; 0 where the mask is empty."""
    return masked_sum(values, mask, axis) / (mask.sum(dim=axis) + SMALL)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """The variance over the mask. Raises ValueError for the unbiased one of fewer than two values."""
    variance = masked_mean((values - masked_mean(values, mask)) ** 2, mask)
    if not unbiased:
        return variance
    count = mask.sum()
    if count <= 1:
        raise ValueError(f"the mask has {int(count)} entries; an unbiased variance needs two")
    return variance * count / (count - 1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Zero mean and unit deviation over the mask; the mean stays with `shift_mean=False`."""
    mean = masked_mean(values, mask)
    whitened = (values - mean) * torch.rsqrt(masked_var(values, mask) + SMALL)
    return whitened if shift_mean else whitened + mean


def clip_by_value(x: Tensor, tensor_min: Tensor, tensor_max: Tensor) -> Tensor:
    """`x` between two tensors."""
    return torch.minimum(torch.maximum(x, tensor_min), tensor_max)


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Log-probs [...] of `labels` [...] under `logits` [..., V]."""
    return torch.log_softmax(logits.float(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
