"""Images and videos of a batch, beside its packed tokens.

Invariant: every selection keeps a sequence's media in the order of its tokens, and a micro-batch passes them to the
model in the order of its sequences. So the tokens of an image get its own features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentrl.chat.media.inputs import arguments, rotary_positions
from agentrl.core.errors import UserError
from agentrl.trajectory.medium import Medium

if TYPE_CHECKING:
    from agentrl.training.batches.batch import Batch


@dataclass(frozen=True)
class Media:
    """A column of a batch: one entry per sequence."""

    held: tuple[tuple[Medium, ...], ...]

    @classmethod
    def of(cls, media: Sequence[Sequence[Medium]]) -> "Media | None":
        """The media of several ledgers, without the pictures; None where no ledger has any."""
        if not any(media):
            return None
        # One object for all samples of a group, which share the media of their prompt.
        features = {medium: replace(medium, source=None) for own in media for medium in own}
        return cls(tuple(tuple(features[medium] for medium in own) for own in media))

    def __getitem__(self, sequences: Tensor) -> "Media":
        return Media(tuple(self.held[i] for i in sequences.tolist()))

    def to(self, device: torch.device) -> "Media":
        """Itself: features move to the device with the micro-batch that needs them."""
        return self

    @property
    def first(self) -> int:
        """The first sequence with media."""
        return next((i for i, own in enumerate(self.held) if own), 0)

    @property
    def all(self) -> list[Medium]:
        """All media in the order of the tokens."""
        return [medium for own in self.held for medium in own]


def inputs(network: Any, batch: "Batch", ids: Tensor, positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Positions [1, T] or [3, 1, T] for a forward over `ids` [T], and its further arguments.

    Raises UserError where the tokens are split among ranks.
    """
    media = batch.media
    if media is None or not media.all:
        return positions[None], {}
    if ids.numel() != batch.num_tokens:
        raise UserError("actor.ulysses_sequence_parallel_size: images cannot be split among ranks; set it to 1")
    given = arguments(network, [ids.tolist()], media.all, ids.device)
    turns = [
        rotary_positions(network, own, seen) if seen else None
        for own, seen in zip(ids.split(batch.lengths), media.held, strict=True)
    ]
    if all(turn is None for turn in turns):
        return positions[None], given
    flat = zip(turns, positions.split(batch.lengths), strict=True)
    return torch.cat([turn if turn is not None else line.expand(3, -1) for turn, line in flat], dim=1)[:, None], given
