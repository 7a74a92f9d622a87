"""The arguments of a model's forward besides its tokens."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.trajectory.medium import Medium, features, token_types

TYPES = ("mm_token_type_ids", "token_type_ids")
"""Names of the argument that marks the tokens of images."""


def arguments(
    model: Any, ids: Sequence[Sequence[int]], media: Sequence[Medium], device: torch.device
) -> dict[str, Tensor]:
    """Arguments for a padded batch of token ids [B][T], in which `media` stand in order; none without media."""
    if not media:
        return {}
    given = features(media)
    name = next((name for name in TYPES if name in parameters(type(model))), None)
    if name is not None:
        given[name] = torch.tensor([token_types(row, media) for row in ids])
    return {name: tensor.to(device) for name, tensor in given.items()}


def rotary_positions(model: Any, ids: Tensor, media: Sequence[Medium]) -> Tensor | None:
    """Positions int64 [3, T] (time, height, width) of one sequence [T] of a model with three-dimensional rotary
    embeddings (Qwen2-VL, arXiv 2409.12191); None of any other model."""
    index = getattr(model.base_model, "get_rope_index", None)
    if index is None:
        return None
    accepted = inspect.signature(index).parameters
    given = {name: tensor for name, tensor in features(media).items() if name in accepted}
    if TYPES[0] in accepted:
        given[TYPES[0]] = torch.tensor([token_types(ids.tolist(), media)], device=ids.device)
    return index(input_ids=ids[None], **given)[0][:, 0]


def parameters(kind: Any) -> frozenset[str]:
    """Names that a model class's forward takes."""
    return frozenset(inspect.signature(kind.forward).parameters)
