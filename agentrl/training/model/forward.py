"""A forward pass over a batch's tokens: packed in one row, or one sequence at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentrl.chat.media.inputs import arguments, rotary_positions
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.shared_prompts import repeated
from agentrl.training.model.attention.choosing import packing_arguments
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ulysses import TokenShard


def run(model: ModelHandle, batch: Batch, part: TokenShard, forward: Callable[..., Tensor]) -> Tensor:
    """`forward` of a model over this rank's tokens [T, ...]: packed in one row, or one sequence at a time.

    `forward` gets ids [T], positions [1, T] (with images [3, 1, T]) and further arguments by name.
    """
    model.count(batch.lengths, len(batch.scored), repeated(batch.prompts) if batch.shared is not None else [])
    if model.packs:
        positions, seen = _inputs(model.base, batch, part.ids, part.positions)
        kernel = model.attention_kernel(part.ids.device)
        packing = packing_arguments(part.cu_seqlens, part.longest, part.group, kernel, part.shared)
        return _routed(model, batch, part, lambda: forward(part.ids, positions, **seen, **packing))
    sequences = [batch.select([i]) for i in range(batch.num_sequences)]
    output = torch.cat([_alone(model, own, forward) for own in sequences])
    if batch.experts is not None:
        batch.experts = torch.cat([own.experts for own in sequences if own.experts is not None])
    return output


def _alone(model: ModelHandle, batch: Batch, forward: Callable[..., Tensor]) -> Tensor:
    positions, seen = _inputs(model.base, batch, batch.ids, batch.positions)
    part = TokenShard(batch.ids, positions, batch.cu_seqlens, batch.num_tokens, 0)
    return _routed(model, batch, part, lambda: forward(batch.ids, positions, **seen, use_cache=False))


def _routed(model: ModelHandle, batch: Batch, part: TokenShard, forward: Callable[[], Tensor]) -> Tensor:
    """`forward()` with the batch's experts, where the model replays them; the batch then has all that tokens met."""
    if model.routing is None or batch.experts is None:
        return forward()
    counted = torch.ones_like(batch.mask) & batch.mask.any()
    counted[batch.cu_seqlens[1:] - 1] = False  # no token follows the last one, so its experts have no effect
    with model.routing.replay(part.rows(batch.experts), part.rows(counted)) as met:
        output = forward()
    batch.experts = part.join(met, batch.num_tokens)
    return output


def _inputs(network: Any, batch: Batch, ids: Tensor, positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Positions [1, T] or [3, 1, T] for a forward over `ids` [T], and its further arguments.

    Raises UserError where the tokens are split among ranks.
    """
    media = batch.media
    if media is None or not media.all:
        return positions[None], {}
    if ids.numel() != batch.num_tokens:
        raise UserError("actor.ulysses_sequence_parallel_size: images cannot be split among ranks; set it to 1")
    given = arguments(network, [ids.tolist()], media.all, ids.device)
    shown = zip(ids.split(batch.lengths), media.held, strict=True)
    turns = [rotary_positions(network, own, seen) if seen else None for own, seen in shown]
    if all(turn is None for turn in turns):
        return positions[None], given
    flat = zip(turns, positions.split(batch.lengths), strict=True)
    return torch.cat([turn if turn is not None else line.expand(3, -1) for turn, line in flat], dim=1)[:, None], given
