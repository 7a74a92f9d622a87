"""The batch of a training step: packed token columns without padding.

T tokens of B sequences are in one row; `cu_seqlens` has their bounds. Entry t of every [T] column belongs to token t
itself; `logprobs[t]` is log p(token t | the tokens before it in its sequence). A trajectory owns one sequence, or
several where its history was rewritten; those are adjacent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.training.batches.media import Media
from agentrl.training.batches.shared_prompts import Prompt, SharedPrompts, sequence_prompts, shared_prompts
from agentrl.training.batches.sources import Sources

_PER_SEQUENCE = (
    *("trajectory", "group", "index", "side", "baselines", "components", "truncated", "key", "media"),
    *("teacher", "teacher_prompts", "sources"),
)
_SCORED = ("mask", "weights", "chosen", "rejected")


@dataclass
class Batch:
    """Packed sequences. Columns that are not computed yet are None."""

    ids: Tensor
    """int64 [T]."""
    mask: Tensor
    """bool [T]; True on tokens that the model sampled, which are trained on; False on a sequence's first token."""
    rollout_logprobs: Tensor
    """f32 [T]; the engine's, 0 off the mask."""
    rewards: Tensor
    """f32 [T]."""
    cu_seqlens: Tensor
    """int32 [B+1]; sequence i is tokens cu_seqlens[i] to cu_seqlens[i+1]."""
    trajectory: Tensor
    """int64 [B]; the sequence's trajectory, as an index into the packed list."""
    group: Tensor
    """int64 [B]; the sequence's prompt, by a number that ascends with the prompts' first sequences."""
    index: Tensor | None = None
    """int64 [B]; the sequence's index in the whole batch, where this is a share of one."""
    side: Tensor | None = None
    """int64 [B]; the side of a game that the sequence belongs to; None where the policy plays one side only."""
    old_logprobs: Tensor | None = None
    """f32 [T]; of the policy before the step."""
    ref_logprobs: Tensor | None = None
    """f32 [T]; of the reference policy."""
    kl: Tensor | None = None
    """f32 [T]; the exact KL from the policy before the step to the reference, where it is part of the reward."""
    baselines: Tensor | None = None
    """f32 [B]; the score of the prompt's greedy answer, NaN where there is none."""
    components: Tensor | None = None
    """f32 [B, K]; the parts of the reward of its trajectory, where the estimator reads them."""
    truncated: Tensor | None = None
    """bool [B]; whether its trajectory ended at the length limit."""
    key: Tensor | None = None
    """int64 [B]; the same number for the same ledger in any batch; None where it is not needed."""
    values: Tensor | None = None
    """f32 [T]; the critic's values before the step, of the state in which token t was sampled."""
    stale: Tensor | None = None
    """bool [T]; the model's tokens that older weights drew; None in a run whose tokens are all of the present ones."""
    advantages: Tensor | None = None
    """f32 [T]."""
    returns: Tensor | None = None
    """f32 [T]; the critic's targets."""
    weights: Tensor | None = None
    """f32 [T]; each token's share of the loss."""
    chosen: Tensor | None = None
    """bool [T]; the tokens that the policy loss treats differently."""
    targets: Tensor | None = None
    """int64 [T, K]; the tokens to score after those before each, in place of the token itself."""
    rejected: Tensor | None = None
    """bool [T]; the model's tokens that rejection took out of the mask."""
    importance: Tensor | None = None
    """f32 [T]; importance weights, where they are computed before the update."""
    capped: Tensor | None = None
    """f32 [T]; 1 where the cap of importance weights acts."""
    experts: Tensor | None = None
    """uint8 or int16 [T, L, k]; the experts that each token met in each layer, see `Routing`; None: none is known."""
    counts: Tensor | None = None
    """int64 [T]; the tokens that each entry stands for, where the batch has lines (`agentrl.trajectory.outline`) in
    place of tokens; None: one."""
    teacher: Tensor | None = None
    """int64 [B]; the sequence's teacher by its number, -1: none; None in a run without teachers."""
    teacher_prompts: Tensor | None = None
    """int64 [B, 1 + P]; the number of first tokens that its teacher does not read, and the ids that it reads in their
    place, -1 after their end."""
    teacher_logprobs: Tensor | None = None
    """f32 [T]; a server's log-probs of the tokens, NaN where it has none."""
    teacher_topk_ids: Tensor | None = None
    """int32 [T, k]; the likeliest tokens of a server."""
    teacher_topk_logprobs: Tensor | None = None
    """f32 [T, k]; their log-probs."""
    media: Media | None = None
    """[B]; images and videos of each sequence; None without any."""
    sources: Sources | None = None
    """[B]; where the tokens of each sequence are, if they are in a store: then `ids` and `rollout_logprobs` are 0."""

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, lengths: Sequence[int], **columns: Any) -> "Batch":
        """Sequences of these lengths with further columns; by default each is a trajectory and a group, without
        rewards."""
        zeros, own = torch.zeros(len(ids), device=ids.device), torch.arange(len(lengths), device=ids.device)
        plain = {"rollout_logprobs": zeros, "rewards": zeros, "trajectory": own, "group": own}
        return cls(ids, mask, cu_seqlens=bounds_of(lengths).to(ids.device), **plain | columns)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that there are, by name."""
        return {f.name: column for f in fields(self) if (column := getattr(self, f.name)) is not None}

    def column(self, name: str) -> Tensor:
        """A column of tensors that must be there. Raises ValueError."""
        column: Tensor | None = getattr(self, name)
        if column is None:
            raise ValueError(f"the batch has no {name}")
        return column

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.ids.numel()

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.trajectory.numel()

    def players(self) -> tuple[Tensor, Tensor]:
        """(player, group), int64 [B] each, in place of trajectory and group where rewards are compared.

        A player is one side of a trajectory. It is compared with the same side of the prompt's other trajectories: each
        side has its own baseline (role-conditioned advantages, SPIRAL, arXiv 2506.24119).
        """
        if self.side is None:
            return self.trajectory, self.group
        sides = int(self.side.max()) + 1 if self.num_sequences else 1
        return self.trajectory * sides + self.side, self.group * sides + self.side

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each sequence. Read from the device once: a read waits for the work that is queued there."""
        lengths: list[int] = self.cu_seqlens.diff().tolist()
        return lengths

    @property
    def token_lengths(self) -> list[int]:
        """Tokens of each sequence, also where the batch has lines."""
        return self.lengths if self.counts is None else [int(own.sum()) for own in self.counts.split(self.lengths)]

    @property
    def keys(self) -> list[int]:
        """`key` as a list."""
        return [] if self.key is None else self.key.tolist()

    def expanded(self) -> "Batch":
        """The batch of lines with tokens in place of them."""
        counts = self.column("counts")
        names = self.columns.keys() - {*_PER_SEQUENCE, "cu_seqlens", "counts"}
        tokens = {name: getattr(self, name).repeat_interleave(counts) for name in names}
        return replace(self, **tokens, cu_seqlens=bounds_of(self.token_lengths), counts=None)

    @cached_property
    def positions(self) -> Tensor:
        """int64 [T]; begins at 0 in every sequence."""
        return positions_of(self.cu_seqlens, self.num_tokens)

    @cached_property
    def scored(self) -> Tensor:
        """Indices of the model tokens with a token before them, int64 [N]; of the mask at the first use."""
        return (self.mask & (self.positions > 0)).nonzero().squeeze(-1)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompt of each sequence. Read from the device once, as `lengths`."""
        if self.sources is not None:
            return self.sources.prompts
        return sequence_prompts(self.ids.cpu().numpy(), self.mask.cpu().numpy(), self.lengths)

    @cached_property
    def shared(self) -> SharedPrompts | None:
        """The layout of a pass that computes equal prompts once; None: it computes every token."""
        return None

    def share_prompts(self) -> "Batch":
        """This batch; from now on its pass computes equal prompts once."""
        self.shared = shared_prompts(self.lengths, self.prompts, self.ids.device)
        return self

    def read(self) -> "Batch":
        """This batch, with `lengths` and `scored` read: a forward pass then never waits for the device."""
        _ = self.lengths, self.scored
        return self

    def tokens_of(self, sequences: Sequence[int]) -> Tensor:
        """Indices of the tokens of the given sequences, in that order: int64."""
        bounds = [0, *accumulate(self.lengths)]
        chunks = [np.arange(bounds[i], bounds[i + 1]) for i in sequences]
        return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *chunks])).to(self.ids.device)

    def select(self, sequences: Sequence[int]) -> "Batch":
        """The given sequences, in the given order. Every column follows."""
        rows = torch.tensor(sequences, dtype=torch.long, device=self.ids.device)
        tokens, lengths = self.tokens_of(sequences), [self.lengths[i] for i in sequences]
        picked = {
            name: column[rows if name in _PER_SEQUENCE else tokens]
            for name, column in self.columns.items()
            if name != "cu_seqlens"
        }
        chosen = replace(self, **picked, cu_seqlens=bounds_of(lengths).to(self.ids.device))
        chosen.lengths = lengths
        if "prompts" in vars(self):
            chosen.prompts = [self.prompts[i] for i in sequences]
        return chosen

    def share(self, sequences: Sequence[int]) -> "Batch":
        """The given sequences as the share of a rank, which knows their indices here."""
        if not sequences and self.media is not None and self.num_sequences:
            return replace(self.dummy(), index=torch.tensor([self.media.first], device=self.ids.device))
        index = torch.tensor(sequences, dtype=torch.long, device=self.ids.device)
        return replace(self.select(sequences), index=index)

    def dummy(self) -> "Batch":
        """A dummy batch with the same columns and no trained token: it runs the collectives of a micro-batch."""
        if self.media is not None:  # it must run the vision tower too
            sample = self.select([self.media.first])
            masked: dict[str, Any] = {n: torch.zeros_like(c) for n, c in sample.columns.items() if n in _SCORED}
            return replace(sample, **masked)
        rows = {n: 1 if n in _PER_SEQUENCE else 2 for n in self.columns}
        blank: dict[str, Any] = {n: c.new_zeros(rows[n], *c.shape[1:]) for n, c in self.columns.items()}
        return replace(self, **blank | {"cu_seqlens": 2 * torch.arange(2, device=self.ids.device, dtype=torch.int32)})

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        columns: dict[str, Any] = {n: column.to(device) for n, column in self.columns.items() if hasattr(column, "to")}
        moved = replace(self, **columns)
        moved.lengths = self.lengths
        return moved


def bounds_of(lengths: Sequence[int]) -> Tensor:
    """`cu_seqlens` of sequences of these lengths: int32 [B+1]."""
    bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    bounds[1:] = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
    return bounds


def positions_of(cu_seqlens: Tensor, total: int) -> Tensor:
    """Place of each of `total` tokens in its sequence, int64 [T]. `cu_seqlens`: their bounds. A device is not waited
    for."""
    starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=total)
    return torch.arange(total, device=cu_seqlens.device) - starts
