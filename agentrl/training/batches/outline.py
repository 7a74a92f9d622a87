"""Splits a batch into one share per data-parallel rank: its outline, the plan, and facts about the whole batch.

Invariants:
- a share is a batch: its sequences keep the numbers of their prompt and trajectory in the whole batch;
- facts about the whole batch, the prompts of its mini-batches among them, are sums and maxima over shares;
- ranks get sequences by facts about these, so nothing that a rank gets grows with the tokens of other shares.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms.losses import PolicyLoss
from agentrl.algorithms.segments import numbers_within, sequence_of, sum_by
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.shared_prompts import Prompt
from agentrl.training.parallel.ranks import Ranks


@dataclass(frozen=True)
class BatchOutline:
    """The facts about the B sequences of a batch by which ranks get them."""

    lengths: list[int]
    """Tokens."""
    group: list[int]
    """Prompts."""
    zero_advantage: list[bool]
    """Whether all advantages of a sequence are 0."""
    mixed: bool
    """Whether some sequences have images, and others none."""
    shared: list[Prompt] | None = None
    """The prompts, where a pass computes equal ones once; None: it computes every token."""
    accumulated: frozenset[int] = frozenset()
    """Sequences whose gradients are accumulated already."""

    @classmethod
    def of(cls, batch: Batch, shares: bool = False, accumulated: Collection[int] = ()) -> "BatchOutline":
        """The outline of a whole batch, whose advantages may be missing. `shares`: passes compute equal prompts once,
        but for those with images. `accumulated`: keys of sequences."""
        images = [bool(media) for media in batch.media.held] if batch.media else [False]
        images = batch.sources.images if batch.sources else images
        shared = batch.prompts if shares and not any(images) else None
        return cls(
            lengths=batch.token_lengths,
            group=batch.group.tolist(),
            zero_advantage=[not moves for moves in moves_policy(batch)],
            mixed=any(images) and not all(images),
            shared=shared,
            accumulated=frozenset(i for i, key in enumerate(batch.keys if accumulated else ()) if key in accumulated),
        )

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(set(self.group))


def moves_policy(batch: Batch) -> list[bool]:
    """Whether each sequence has a trained token with an advantage, as far as these are known, or a chosen one, whose
    penalty has a gradient in any case."""
    if batch.advantages is None:
        return [True] * batch.num_sequences
    moving = (batch.advantages != 0) & batch.mask
    moving = moving if batch.chosen is None else moving | batch.chosen
    found: list[bool] = (sum_by(moving.long(), sequence_of(batch.cu_seqlens), batch.num_sequences) > 0).tolist()
    return found


@dataclass(frozen=True)
class BatchPlan:
    """The shares of a batch, and the work of the ranks on them."""

    shares: list[list[int]]
    """The sequences of each share."""
    scores_first: bool
    """Whether the ranks compute columns before the update."""


def prompts_of(batch: Batch, ranks: Ranks) -> list[int]:
    """The prompts of the whole batch of which `batch` is this rank's share, in order. Collective."""
    group: list[int] = batch.group.tolist()
    if ranks.data_world == 1:
        return list(dict.fromkeys(group))
    there = torch.zeros(ranks.max_over_ranks(max(group, default=-1) + 1), dtype=torch.long)
    there[group] = 1
    found: list[int] = ranks.sum_over_ranks(there).nonzero().squeeze(-1).tolist() if there.numel() else []
    return found


def choose_tokens(policy_loss: PolicyLoss, mini: Batch, generator: torch.Generator, ranks: Ranks) -> Tensor:
    """The tokens of a mini-batch that the loss treats differently: bool [T], of this rank's share. Collective.

    They are chosen among the whole mini-batch's: each rank sees two numbers of all of its model tokens.
    """
    columns = mini.column("old_logprobs"), mini.column("advantages")
    if ranks.data_world == 1:
        return policy_loss.choose(*columns, mini.mask, generator)
    own = mini.mask.nonzero().squeeze(-1)
    indices, count = _indices(mini, own, ranks)
    table = torch.zeros(2, count, device=own.device)
    table[:, indices] = torch.stack(columns)[:, own]
    old_logprobs, advantages = ranks.sum_over_ranks(table)
    everywhere = torch.ones(count, dtype=torch.bool, device=own.device)
    chosen = policy_loss.choose(old_logprobs, advantages, everywhere, generator)
    return torch.zeros_like(mini.mask).index_put((own,), chosen[indices])


def _indices(mini: Batch, own: Tensor, ranks: Ranks) -> tuple[Tensor, int]:
    """(the indices of the model tokens `own` among those of the whole mini-batch, the number of these)."""
    index = mini.column("index")[sequence_of(mini.cu_seqlens)[own]]
    mine = sum_by(torch.ones_like(own), index, ranks.max_over_ranks(int(mini.column("index").max()) + 1))
    sizes = ranks.sum_over_ranks(mine)
    starts = sizes.cumsum(0) - sizes
    return starts[index] + numbers_within(index), int(sizes.sum())
