"""Images and videos of a batch.

Invariant: every selection keeps a sequence's media in the order of its tokens, and a micro-batch passes them to the
model in the order of its sequences. So the tokens of an image get its own features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from agentrl.trajectory.medium import Medium


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

    @property
    def first(self) -> int:
        """The first sequence with media."""
        return next((i for i, own in enumerate(self.held) if own), 0)

    @property
    def all(self) -> list[Medium]:
        """All media in the order of the tokens."""
        return [medium for own in self.held for medium in own]
