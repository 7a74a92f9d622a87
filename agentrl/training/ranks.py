"""The processes that train one model together, as one of them sees it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """One process among `world`; alone by default, and then nothing of torch.distributed is needed."""

    rank: int = 0
    """Which of them this one is."""
    world: int = 1
    """How many there are."""

    @property
    def first(self) -> bool:
        """Whether this process speaks for all where one must."""
        return self.rank == 0
