"""Teachers that the training ranks hold: frozen models, averages of the policy, the policy with another prompt.

Invariant: a teacher reads the tokens of the ledger, with its own prompt in place of the ledger's where it has one; its
tokens after the prompt are the policy's, one by one. Every rank calls every teacher, for some without a sequence.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from agentrl.training.batches.batch import Batch
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import Logits
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.micro_batches import sequences_or_dummy


class RankTeachers:
    """The teachers of a run that its ranks hold, by their numbers."""

    def __init__(self, models: Mapping[int, Reference], ema: Mapping[int, float]) -> None:
        """`ema`: the share of its weights that a teacher keeps at a step, for averages of the policy."""
        self.models, self.ema = models, ema

    def logprobs(self, batch: Batch) -> Tensor:
        """The teachers' log-probs of the model's tokens, f32 [T]; NaN without a teacher, and `teacher_logprobs` of the
        batch where it has them. Collective."""
        whole = batch.teacher_logprobs
        column = torch.full_like(batch.rollout_logprobs, torch.nan) if whole is None else whole.clone()
        for number, model in self.models.items():
            read, targets = self._part(batch, number)
            column[targets] = model.logprobs(read)[read.scored]
        return column

    def logits(self, micro: Batch) -> Logits:
        """The logits of a micro-batch's tokens, each by its teacher. Collective."""
        if len(self.models) == 1 and micro.teacher_prompts is None:
            return next(iter(self.models.values())).logits(micro)
        owner = micro.column("teacher").repeat_interleave(micro.cu_seqlens.diff())
        found = {
            number: model.logits(*self._part(micro, number), micro.num_tokens) for number, model in self.models.items()
        }
        return partial(_by_owner, owner, found)

    def follow(self, policy: ModelHandle) -> None:
        """Move averages of the policy towards it."""
        for number, keep in self.ema.items():
            self.models[number].copy_from(policy, keep)

    def _part(self, batch: Batch, number: int) -> tuple[Batch, Tensor]:
        """(a teacher's sequences as it reads them, their model tokens as int64 [N] indices into the batch)."""
        mine = (batch.column("teacher") == number).nonzero()[:, 0].tolist()
        part = sequences_or_dummy(batch, mine)
        read = with_teacher_prompts(part).read()
        return read.share_prompts() if batch.shared is not None else read, batch.tokens_of(mine)[part.scored]


def _by_owner(owner: Tensor, found: Mapping[int, Logits], tokens: Tensor) -> Tensor:
    """The logits of tokens [C], each by its teacher; 0 without one."""
    masks = {number: owner[tokens] == number for number in found}
    parts = {number: logits(tokens[masks[number]]) for number, logits in found.items()}
    whole = owner.new_zeros(len(tokens), min(part.shape[1] for part in parts.values()), dtype=torch.float32)
    for number, part in parts.items():
        whole[masks[number]] = part[:, : whole.shape[1]]
    return whole


def with_teacher_prompts(batch: Batch) -> Batch:
    """The batch with its teachers' prompts in place of the sequences' own, and the same tokens after them."""
    if batch.teacher_prompts is None or not batch.num_sequences:
        return batch
    pieces: list[tuple[Tensor, Tensor]] = []
    columns = zip(batch.ids.split(batch.lengths), batch.mask.split(batch.lengths), strict=True)
    for (ids, mask), (replaced, *_), prompt in zip(
        columns, batch.teacher_prompts.tolist(), batch.teacher_prompts[:, 1:], strict=True
    ):
        prompt = prompt[prompt >= 0]
        unmasked = torch.zeros_like(prompt, dtype=torch.bool)
        pieces.append((torch.cat([prompt, ids[replaced:]]), torch.cat([unmasked, mask[replaced:]])))
    ids, mask = (torch.cat(column) for column in zip(*pieces, strict=True))
    lengths = [len(own) for own, _ in pieces]
    return Batch.of(ids, mask, lengths, trajectory=batch.trajectory, group=batch.group, media=batch.media)
