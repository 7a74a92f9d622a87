"""Keys of agentrl that have another name now: the old name works until a version and a date that are known.

Invariant: an old name is a key of no schema, and its new name is one. verl's names are another matter: names.py.
"""

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True)
class Deprecation:
    """One renamed key, or section with all keys below it."""

    old: str
    new: str
    since: str
    """The version that brought the new name."""
    removed_in: str
    """The first version without the old name."""
    not_before: date
    """That version is released on this day at the earliest."""

    @property
    def note(self) -> str:
        """The line for a user who sets the old name."""
        return (
            f"{self.old} is deprecated since {self.since}: set {self.new}; "
            f"the old name ends with {self.removed_in}, not before {self.not_before}"
        )


DEPRECATED: tuple[Deprecation, ...] = ()
"""Newest last. docs/config.md lists them."""
