"""How many batches of rows are under way at once: as few as keep the trainer from waiting, at most `max_staleness` + 1.

Each further batch makes all tokens one version older. It pays only where the trainer waits for a few slow conversations
and the engine has hardly anything else to do.
"""

from dataclasses import dataclass

LEAST = 2
"""The batch that the trainer waits for or trains on, and the next one."""


@dataclass
class Window:
    """Grows while the engine runs dry, and shrinks again when the trainer has not waited for a while."""

    most: int
    """`max_staleness` + 1."""
    groups: int
    """Groups of a batch."""
    size: int = LEAST
    """Batches that may be begun and not yet trained on."""
    _looks: int = 0
    _dry: int = 0
    _calm: int = 0

    def __post_init__(self) -> None:
        self.size = min(self.size, self.most)

    def look(self, others: int) -> None:
        """The trainer waits for a batch while `others` more groups are under way; call it at regular intervals."""
        self._looks += 1
        self._dry += 2 * others < self.groups

    def trains(self) -> None:
        """The trainer has got its batch."""
        waited, dry = self._looks > 0, 2 * self._dry > self._looks
        self._looks = self._dry = 0
        self._calm = 0 if waited else self._calm + 1
        if waited and dry:
            self.size = min(self.size + 1, self.most)
        elif self._calm >= self.size:  # long enough for every place to have been used once
            self.size, self._calm = max(self.size - 1, min(LEAST, self.most)), 0
