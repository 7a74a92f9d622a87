"""Random packed batches for property tests, drawn by hypothesis."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Packing:
    rewards: Tensor
    mask: Tensor
    cu_seqlens: Tensor
    trajectory: Tensor
    group: Tensor

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return self.rewards, self.mask, self.cu_seqlens, self.trajectory, self.group

    @property
    def spans(self) -> list[range]:
        bounds = self.cu_seqlens.tolist()
        return [range(a, b) for a, b in pairwise(bounds)]

    def tokens(self, trajectory: int) -> list[int]:
        """Token indices of a trajectory, over all of its sequences."""
        owners = self.trajectory.tolist()
        return [t for span, owner in zip(self.spans, owners, strict=True) if owner == trajectory for t in span]


def pack_up(sequences: list[tuple[int, int, list[tuple[float, bool]]]]) -> Packing:
    """From (trajectory, group, [(reward, made by the model), ...]) per sequence."""
    tokens = [token for _, _, column in sequences for token in column]
    bounds = [0]
    for _, _, column in sequences:
        bounds.append(bounds[-1] + len(column))
    return Packing(
        rewards=torch.tensor([r for r, _ in tokens], dtype=torch.float32),
        mask=torch.tensor([m for _, m in tokens], dtype=torch.bool),
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        trajectory=torch.tensor([t for t, _, _ in sequences], dtype=torch.long),
        group=torch.tensor([g for _, g, _ in sequences], dtype=torch.long),
    )


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Groups of 1 to 4 trajectories of 1 to 3 sequences, with gaps in their numbering as dropped ones leave them."""
    sequences = []
    number = 0
    for group in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 4))):
            number += draw(st.integers(1, 3))
            for _ in range(draw(st.integers(1, 3))):
                mask = draw(st.lists(st.booleans(), min_size=1, max_size=8))
                rewards = [draw(st.sampled_from([0.0, 0.0, 1.0, -0.5, 0.1])) if m else 0.0 for m in mask]
                column = [(0.0, False), *zip(rewards, mask, strict=True)]
                sequences.append((number, group * 7, column))
    return pack_up(sequences)


def padded(packing: Packing, column: Tensor) -> dict[int, list[tuple[int, float]]]:
    """By trajectory: (token index, value) of its model tokens in order, over all of its sequences."""
    return {
        trajectory: [(t, column[t].item()) for t in packing.tokens(trajectory) if packing.mask[t]]
        for trajectory in dict.fromkeys(packing.trajectory.tolist())
    }


def turns_of(packing: Packing) -> dict[int, list[list[int]]]:
    """By trajectory: the token indices of each of its turns, found token by token."""
    owners = packing.trajectory.tolist()
    turns: dict[int, list[list[int]]] = {owner: [] for owner in owners}
    for span, owner in zip(packing.spans, owners, strict=True):
        open_turn = False
        for t in span:
            if packing.mask[t] and not open_turn:
                turns[owner].append([])
            if packing.mask[t]:
                turns[owner][-1].append(t)
            open_turn = bool(packing.mask[t])
    return turns
