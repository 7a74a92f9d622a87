"""Padding and positions, for datasets and loops written for verl that make their own tensors."""

import torch


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
