"""Cutting a batch: mini-batches (one optimizer step each) by prompts, shares (a rank's part of one) by work,
micro-batches (one forward pass each) by size.

All are deterministic. How a mini-batch is cut into micro-batches does not change the result: the loss weights are
made for the mini-batch as a whole.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import torch

from agentrl.training.batch import Batch


def mini_batches(batch: Batch, prompts: int, *, generator: torch.Generator | None = None) -> list[list[int]]:
    """Sequence indices of each mini-batch: at most `prompts` prompts with all their trajectories that are there.

    With a generator the prompts are shuffled first. The sequences of one trajectory, and the trajectories of one
    prompt, stay together. Mini-batches are as few as `prompts` allows, and alike to within one prompt: Adam makes each
    step about as large as the others, so that a prompt left over would weigh as much as all of another step's.
    """
    by_group: dict[int, list[int]] = {}
    for sequence, group in enumerate(batch.group.tolist()):
        by_group.setdefault(group, []).append(sequence)
    groups = list(by_group.values())
    if generator is not None:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    steps = ceil(len(groups) / prompts)
    bounds = [len(groups) * i // steps for i in range(steps + 1)] if steps else []
    return [[s for group in groups[i:j] for s in group] for i, j in pairwise(bounds)]


def micro_batches(
    lengths: Sequence[int], *, max_tokens: int | None, max_sequences: int | None, at_least: int = 1
) -> list[list[int]]:
    """Cut sequences into as few evenly filled passes as fit both limits; indices into `lengths`, fullest pass first.

    A sequence longer than `max_tokens` gets a pass of its own. The fullest pass comes first, so that a run that does
    not fit into memory fails at once and not an hour later. `at_least`: passes wanted, where there are as many
    sequences.
    """
    if not lengths:
        return []
    max_tokens = max_tokens or sum(lengths)
    max_sequences = max_sequences or len(lengths)
    bins = max(ceil(sum(lengths) / max_tokens), ceil(len(lengths) / max_sequences), min(at_least, len(lengths)))
    while (cut := _balanced(lengths, bins, max_tokens, max_sequences)) is None:
        bins += 1
    return cut


def rank_shares(lengths: Sequence[int], count: int, *, hidden: int | None) -> list[list[int]]:
    """Deal sequences out to `count` ranks; indices into `lengths`, rising.

    With the model's `hidden` size each share is about the same work: heaviest first to whoever has least so far.
    Without, shares are runs of about the same number of sequences.
    """
    if hidden is None:
        bounds = [len(lengths) * i // count for i in range(count + 1)]
        return [list(range(bounds[i], bounds[i + 1])) for i in range(count)]
    heap = [(0.0, i) for i in range(count)]
    dealt: list[list[int]] = [[] for _ in range(count)]
    for sequence in sorted(range(len(lengths)), key=lambda s: (-lengths[s], s)):
        done, i = heapq.heappop(heap)
        dealt[i].append(sequence)
        heapq.heappush(heap, (done + sequence_cost(lengths[sequence], hidden), i))
    return [sorted(share) for share in dealt]


def sequence_cost(length: int, hidden: int) -> float:
    """What a sequence costs, in tokens of no context.

    In each layer a token's matrix products take about 24 hidden^2 operations, and its causal attention 2 hidden for
    each token of the sequence.
    """
    return length * (1 + length / (12 * hidden))


def _balanced(lengths: Sequence[int], bins: int, max_tokens: int, max_sequences: int) -> list[list[int]] | None:
    """Longest first into the emptiest of `bins`; None where that breaks a limit."""
    heap = [(0, i) for i in range(bins)]
    filled: list[list[int]] = [[] for _ in range(bins)]
    for sequence in sorted(range(len(lengths)), key=lambda s: (-lengths[s], s)):
        tokens, i = heapq.heappop(heap)
        tokens += lengths[sequence]
        filled[i].append(sequence)
        if tokens > max_tokens and len(filled[i]) > 1:
            return None
        if len(filled[i]) < max_sequences:
            heapq.heappush(heap, (tokens, i))
    filled = [sorted(members) for members in filled if members]
    return sorted(filled, key=lambda members: -sum(lengths[s] for s in members))
