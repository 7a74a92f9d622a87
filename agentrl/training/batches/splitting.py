"""Split a batch: into mini-batches (one optimizer step each) by prompts, into shares of ranks by work, into
micro-batches (one forward pass each) by size.

All are deterministic. The split does not change the result: loss weights are computed for the whole mini-batch.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import torch

from agentrl.core.grouping import grouped
from agentrl.training.batches.shared_prompts import Prompt, repeated


def mini_batches(
    group: Sequence[int], prompts: int, *, order: Sequence[int] | None = None, generator: torch.Generator | None = None
) -> list[list[int]]:
    """Sequence indices of each mini-batch: at most `prompts` prompts, each with all its trajectories.

    `group`: the prompt of each sequence. `order`: all prompts, where these are the sequences of a share, which may have
    none in a mini-batch; None: by their first sequences. With a generator the prompts are shuffled first. The sequences
    of one trajectory, and the trajectories of one prompt, stay together. There are as few mini-batches as possible, and
    their sizes differ by at most one prompt: Adam's steps are about equally large, so a single prompt left over would
    weigh as much as a full mini-batch.
    """
    by_group = {number: list[int]() for number in order or ()} | grouped(range(len(group)), group.__getitem__)
    groups = list(by_group.values())
    if generator is not None:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    steps = ceil(len(groups) / prompts)
    bounds = [len(groups) * i // steps for i in range(steps + 1)] if steps else []
    return [[s for own in groups[i:j] for s in own] for i, j in pairwise(bounds)]


def micro_batches(
    lengths: Sequence[int], *, max_tokens: int | None, max_sequences: int | None, at_least: int = 1
) -> list[list[int]]:
    """Split sequences into as few evenly filled micro-batches as the limits allow; indices into `lengths`.

    A sequence longer than `max_tokens` is alone in its micro-batch. The fullest one comes first, so that a run that
    does not fit into memory fails at once. `at_least`: fewest micro-batches, where there are as many sequences.
    """
    if not lengths:
        return []
    max_tokens = max_tokens or sum(lengths)
    max_sequences = max_sequences or len(lengths)
    bins = max(ceil(sum(lengths) / max_tokens), ceil(len(lengths) / max_sequences), min(at_least, len(lengths)))
    while True:
        filled = [sorted(own) for own in _even(lengths, [0.0] * bins, max_sequences) if own]
        if all(len(own) == 1 or sum(lengths[s] for s in own) <= max_tokens for own in filled):
            return sorted(filled, key=lambda own: -sum(lengths[s] for s in own))
        bins += 1


def assign_shares(
    lengths: Sequence[int],
    parts: Sequence[Sequence[int]],
    count: int,
    *,
    hidden: int,
    prompts: Sequence[Prompt] | None = None,
) -> list[list[int]]:
    """Distribute sequences over `count` ranks so that each of `parts`, lists of sequences, is about equal work.

    Returns ascending indices into `lengths`. The heaviest sequence, by the model's `hidden` size, goes to the rank with
    the least work of the part, then of all parts before. With `prompts`, which a rank computes once, sequences of the
    same prompt stay together where the work allows it.
    """
    work = Work(lengths, hidden, prompts)
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for part in parts:
        for rank, dealt in enumerate(_balanced_shares(part, loads, work)):
            shares[rank] += dealt
            loads[rank] += work(dealt)
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Work:
    """The cost of sequences that one rank computes."""

    lengths: Sequence[int]
    hidden: int
    prompts: Sequence[Prompt] | None
    """None: every token is computed."""

    def __call__(self, sequences: Sequence[int]) -> float:
        whole = sum(sequence_cost(self.lengths[i], self.hidden) for i in sequences)
        again = repeated(self.prompts[i] for i in sequences) if self.prompts else []
        return whole - sum(sequence_cost(tokens, self.hidden) for tokens in again)

    def families(self, part: Sequence[int]) -> list[list[int]]:
        """The sequences of a part by their prompt."""
        return list(grouped(part, lambda i: self.prompts[i].number if self.prompts else i).values())


def _balanced_shares(part: Sequence[int], loads: Sequence[float], work: Work) -> list[list[int]]:
    """The sequences of a part for each rank, which has `loads` already.

    Families are whole, or split where they are more than a fair share, or than some part of it: the way with the
    lightest heaviest share, for each part of a family computes the prompt again.
    """
    families = work.families(part)
    costs = [work(family) for family in families]
    fair = sum(costs) / len(loads)

    def dealt(pieces: int) -> list[list[int]]:
        units = [u for f, cost in zip(families, costs, strict=True) for u in _split(f, ceil(cost * pieces / fair))]
        return [[i for u in own for i in units[u]] for own in _even([work(unit) for unit in units], loads)]

    ways = (0, 1, 2, 4, 8, 16) if work.prompts else (0,)
    return min((dealt(pieces) for pieces in ways), key=lambda shares: max(map(work, shares)))


def _split(family: list[int], pieces: int) -> list[list[int]]:
    """A family in so many parts, at least one, or as many as it has members."""
    pieces = min(max(pieces, 1), len(family))
    return [family[i::pieces] for i in range(pieces)]


def _even(costs: Sequence[float], loads: Sequence[float], most: int | None = None) -> list[list[int]]:
    """Indices into `costs` for each rank, or bin: the largest cost first, to the least work so far.

    `loads`: work that the ranks have, which counts between equal ones. `most`: largest number of costs of a rank.
    """
    heap = [(0.0, load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(heap)
    dealt: list[list[int]] = [[] for _ in loads]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        done, load, rank = heapq.heappop(heap)
        dealt[rank].append(item)
        if most is None or len(dealt[rank]) < most:
            heapq.heappush(heap, (done + costs[item], load, rank))
    return dealt


def sequence_cost(length: int, hidden: int) -> float:
    """The cost of a sequence, in tokens without context.

    In each layer a token's matrix products take about 24 hidden^2 FLOPs, its causal attention 2 hidden per token of the
    sequence.
    """
    return length * (1 + length / (12 * hidden))
