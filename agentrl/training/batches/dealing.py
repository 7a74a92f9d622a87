"""Shares of a batch: each rank, or group of ranks that split tokens, has one, and no rank has more.

Invariants:
- a share is a batch: its sequences keep the numbers of their prompt and trajectory in the whole batch;
- facts about the whole batch, the prompts of its mini-batches among them, are sums and maxima over shares;
- a batch is dealt by facts about its sequences, so nothing that a rank gets grows with the tokens of other shares.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms import PolicyLoss
from agentrl.algorithms.segments import numbers_within, sequence_of, sum_by
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.shared_prompts import Prompt
from agentrl.training.parallel.ranks import Ranks


@dataclass(frozen=True)
class Layout:
    """The facts about the B sequences of a batch by which they are dealt."""

    lengths: list[int]
    """Tokens."""
    group: list[int]
    """Prompts."""
    still: list[bool]
    """Whether all advantages are 0."""
    mixed: bool
    """Whether some sequences have images, and others none."""
    shared: list[Prompt] | None = None
    """The prompts, where a pass computes equal ones once; None: it computes every token."""
    begun: frozenset[int] = frozenset()
    """Sequences whose gradients are there."""

    @classmethod
    def of(cls, batch: Batch, shares: bool = False, begun: Collection[int] = ()) -> "Layout":
        """The layout of a whole batch, whose advantages may be missing. `shares`: passes compute equal prompts once,
        but for those with images. `begun`: keys of sequences."""
        images = [bool(media) for media in batch.media.held] if batch.media else [False]
        shared = batch.prompts if shares and batch.media is None else None
        mixed, keys = any(images) and not all(images), batch.key.tolist() if begun and batch.key is not None else []
        there = frozenset(i for i, key in enumerate(keys) if key in begun)
        return cls(batch.lengths, batch.group.tolist(), _still(batch), mixed, shared, there)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(set(self.group))


def _still(batch: Batch) -> list[bool]:
    if batch.advantages is None:
        return [False] * batch.num_sequences
    moving = ((batch.advantages != 0) & batch.mask).long()
    still: list[bool] = (sum_by(moving, sequence_of(batch.cu_seqlens), batch.num_sequences) == 0).tolist()
    return still


@dataclass(frozen=True)
class Plan:
    """The way of a batch through the ranks."""

    shares: list[list[int]]
    """The sequences of each share."""
    scores_first: bool
    """Whether the ranks compute columns before the update."""


def prompts_of(batch: Batch, ranks: Ranks) -> list[int]:
    """The prompts of the whole batch of which `batch` is this rank's share, in order. Collective."""
    group: list[int] = batch.group.tolist()
    if ranks.data_world == 1:
        return list(dict.fromkeys(group))
    there = torch.zeros(ranks.most(max(group, default=-1) + 1), dtype=torch.long)
    there[group] = 1
    found: list[int] = ranks.total(there).nonzero().squeeze(-1).tolist() if there.numel() else []
    return found


def choose_tokens(policy_loss: PolicyLoss, mini: Batch, generator: torch.Generator, ranks: Ranks) -> Tensor:
    """The tokens of a mini-batch that the loss treats differently: bool [T], of this rank's share. Collective.

    They are chosen among the whole mini-batch's: each rank sees two numbers of all of its model tokens.
    """
    assert mini.old_logprobs is not None
    assert mini.advantages is not None
    if ranks.data_world == 1:
        return policy_loss.choose(mini.old_logprobs, mini.advantages, mini.mask, generator)
    own = mini.mask.nonzero().squeeze(-1)
    places, count = _places(mini, own, ranks)
    table = torch.zeros(2, count, device=own.device)
    table[:, places] = torch.stack([mini.old_logprobs[own], mini.advantages[own]])
    old_logprobs, advantages = ranks.total(table)
    everywhere = torch.ones(count, dtype=torch.bool, device=own.device)
    chosen = policy_loss.choose(old_logprobs, advantages, everywhere, generator)
    return torch.zeros_like(mini.mask).index_put((own,), chosen[places])


def _places(mini: Batch, own: Tensor, ranks: Ranks) -> tuple[Tensor, int]:
    """(the places of the model tokens `own` among those of the whole mini-batch, the number of these)."""
    assert mini.place is not None
    place = mini.place[sequence_of(mini.cu_seqlens)[own]]
    mine = sum_by(torch.ones_like(own), place, ranks.most(int(mini.place.max()) + 1))
    sizes = ranks.total(mine)
    starts = sizes.cumsum(0) - sizes
    return starts[place] + numbers_within(place), int(sizes.sum())
