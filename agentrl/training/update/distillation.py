"""The distance to teachers within the policy's update: from columns of the batch, or from teachers on the ranks."""

from collections.abc import Collection
from dataclasses import fields

import torch
from torch import Tensor

from agentrl.algorithms.distillation import Compared, Distance
from agentrl.algorithms.segments import sequence_of, turn_starts
from agentrl.config.schema import Distillation
from agentrl.training.batches.batch import Batch
from agentrl.training.model.head.chunked import Compare
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.teachers import RankTeachers
from agentrl.training.update.report import Figures

TURNS = 4
"""Turns with a distance of their own in the metrics; the last one stands for all later ones."""


class Distiller:
    """Compares the policy with the teachers of a batch's sequences."""

    def __init__(self, distillation: Distillation, ranks: RankTeachers | None = None) -> None:
        """`ranks`: teachers that the ranks hold."""
        self.distillation, self.ranks = distillation, ranks
        self.distance = Distance(**{f.name: getattr(distillation, f.name) for f in fields(Distance)})

    @property
    def compared(self) -> Collection[Reference]:
        """Teachers whose logits passes read."""
        return self.ranks.models.values() if self.ranks is not None and self.distillation.topk else ()

    def compare(self, micro: Batch) -> Compare | None:
        """The comparison of a micro-batch's tokens; None where the sampled token alone counts. Collective."""
        if self.distillation.topk == 0:
            return None
        if self.ranks is not None:
            logits = self.ranks.logits(micro)
            return lambda own, tokens: torch.stack(self._of_logits(own, logits(tokens)))
        found = with_stored(micro, self.distance)
        if found is None:
            raise ValueError("distillation.topk: no teacher has given its likeliest tokens")
        return found

    def _of_logits(self, own: Tensor, theirs: Tensor) -> Compared:
        both = min(own.shape[1], theirs.shape[1])  # vocabularies may be filled up by unused rows
        return self.distance.of_logits(*(logits[:, :both] / self.distillation.temperature for logits in (own, theirs)))

    def columns(self, micro: Batch, logprobs: Tensor, figures: list[Tensor]) -> tuple[Tensor, list[Figures]]:
        """(distance f32 [T], 0 without a teacher; what is reported). `figures`: those of `compare`."""
        known = micro.mask & (micro.column("teacher") >= 0).repeat_interleave(micro.cu_seqlens.diff())
        found: dict[str, Tensor] = {}
        if not figures or micro.teacher_logprobs is not None:
            theirs = micro.column("teacher_logprobs")
            known = known & ~theirs.isnan()
            theirs = torch.where(known, theirs, 0.0)
            found["distill/kl"] = logprobs - theirs
            figures = figures or [self.distance.of_sampled(logprobs, theirs)]
        found |= {f"distill/{name}": column for name, column in zip(Compared._fields, figures, strict=False)}
        distance, turn = torch.where(known, figures[0], 0.0), turns_of(micro).clamp(max=TURNS)
        turns = [(known & (turn == n), {f"distill/turn_{n}": distance}) for n in range(1, TURNS + 1)]
        return distance, [(known, found), (micro.mask, {"distill/share": known}), *turns]


def with_stored(micro: Batch, distance: Distance) -> Compare | None:
    """The comparison with the tokens that are stored with their log-probs; None without any."""
    ids, known = micro.teacher_topk_ids, micro.teacher_topk_logprobs
    if ids is None or known is None:
        return None
    return lambda own, tokens: torch.stack(distance.of_tokens(own, ids[tokens], known[tokens].nan_to_num()))


def turns_of(batch: Batch) -> Tensor:
    """The turn of each model token within its sequence, from 1: int64 [T]."""
    starts = turn_starts(batch.mask, batch.cu_seqlens)
    begun = starts.cumsum(0)
    earlier = (begun - starts.long())[batch.cu_seqlens[:-1].long()]
    return begun - earlier[sequence_of(batch.cu_seqlens)]
