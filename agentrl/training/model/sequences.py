"""Compute the sequences of a packed row apart from each other, those of about one length in one call."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentrl.training.perf.cpu import FEW, MANY, missing_rows

Run = Callable[..., Sequence[Tensor]]
"""From columns [n, L, ...] of n sequences to columns [n, L, ...], of which no token depends on a later one."""


def run_apart(run: Run, columns: Sequence[Tensor], lengths: Sequence[Sequence[int]]) -> list[Tensor]:
    """`run` on the sequences of packed columns [T, ...]: its columns [T, ...].

    `lengths`: of the sequences, for each column; results have those of the first. Zeros follow the shorter sequences
    of a call.
    """
    parts = [column.split(list(own)) for column, own in zip(columns, lengths, strict=True)]
    results: list[Sequence[Tensor]] = [()] * len(lengths[0])
    for members in _alike(list(zip(*lengths, strict=True))):
        given = [pad_sequence([part[i] for i in members], batch_first=True) for part in parts]
        if more := missing_rows(given[0].shape[1], given[0].device):
            given = [F.pad(x, (*(0, 0) * (x.dim() - 2), 0, more)) for x in given]
        for i, *own in zip(members, *run(*given), strict=True):
            results[i] = [x[: lengths[0][i]] for x in own]
    return [torch.cat(column) for column in zip(*results, strict=True)]


def _alike(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Sequences of about one length; with columns of several lengths, of exactly those."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, own in enumerate(lengths):
        longest = max(own)
        groups[own if len(set(own)) > 1 else longest + -longest % (FEW if longest <= MANY else MANY)].append(i)
    return list(groups.values())
