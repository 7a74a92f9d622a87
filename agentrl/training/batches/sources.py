"""Where the tokens of a batch's sequences are: in a store, from which each rank takes those of its share."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from agentrl.training.batches.shared_prompts import Prompt
from agentrl.trajectory.outline import LedgerOutline


class Source(NamedTuple):
    """A sequence in a store."""

    body: Any
    """The reference of its trajectory's `Body`."""
    number: int
    """Its ledger there."""
    outline: LedgerOutline


@dataclass(frozen=True)
class Sources:
    """A column of a batch: one entry per sequence."""

    each: tuple[Source, ...]
    version: int | None = None
    """The version of the policy that is trained, where older ones may have drawn tokens."""

    def __getitem__(self, sequences: Tensor) -> "Sources":
        return replace(self, each=tuple(self.each[i] for i in sequences.tolist()))

    @property
    def prompts(self) -> list[Prompt]:
        """The prompt of each sequence."""
        numbers: dict[bytes, int] = {}
        outlines = [source.outline for source in self.each]
        return [Prompt(numbers.setdefault(each.prompt, len(numbers)), each.prompt_tokens) for each in outlines]

    @property
    def images(self) -> list[bool]:
        """Whether each sequence has images or videos."""
        return [source.outline.images for source in self.each]
