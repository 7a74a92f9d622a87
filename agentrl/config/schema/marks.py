"""Marks on the types of keys: the words, the numbers, the names and the paths that a key takes.

Checks, help and completion read them; to OmegaConf the value is of the plain type. A tuple of texts is a key's words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any

from agentrl.core.errors import UserError
from agentrl.core.extensions import load_plugins
from agentrl.core.registry import Registry


class PathKind(Enum):
    """How the path of a key is found."""

    FILE = auto()
    CODE = auto()
    MODEL = auto()
    ROWS = auto()
    TEXT = auto()
    LATER = auto()
    OUTPUT = auto()


InputPath = Annotated[str, PathKind.FILE]
"""A file or folder that must exist."""
CodePath = Annotated[str, PathKind.CODE]
"""A Python file that must exist, or a module."""
ModelPath = Annotated[str, PathKind.MODEL]
"""A model's folder, or a hub id."""
RowFiles = Annotated[Any, PathKind.ROWS]
"""A file of rows or a row source, or a list of them."""
TextPath = Annotated[str, PathKind.TEXT]
"""A file that must exist, or its text, which has a brace."""
LaterPath = Annotated[str, PathKind.LATER]
"""A file that may be missing: the code that reads it says so."""
OutputPath = Annotated[str, PathKind.OUTPUT]
"""A file or folder that a run writes."""


@dataclass(frozen=True)
class Range:
    """The numbers that a key takes, or that each member of its list may be."""

    fits: Callable[[Any], bool]
    says: str
    """What a number must be."""


AT_LEAST_0 = Range(lambda value: value >= 0, "must be at least 0")
AT_LEAST_1 = Range(lambda value: value >= 1, "must be at least 1")
ABOVE_0 = Range(lambda value: value > 0, "must be over 0")
SHARE = Range(lambda value: 0 <= value <= 1, "must be from 0 to 1")
FILTERS = {
    "top_p": Range(lambda value: 0 < value <= 1, "must be over 0 and at most 1"),
    "top_k": Range(lambda value: value >= -1, "must be at least 1; -1 or 0: all tokens"),
    "min_p": Range(lambda value: 0 <= value <= 1, "must be from 0 (off) to 1"),
    "repetition_penalty": Range(lambda value: 0 < value <= 2, "must be over 0, up to 2; 1 is off"),  # SGLang's bounds
}
"""Settings of sampling by which tokens do not come from the model's own distribution, with their ranges."""


@dataclass(frozen=True)
class OpenChoice:
    """A key that takes a path of the user's own, and the names in a registry, to which users add their own."""

    registry: Registry[Any]
    further: tuple[str, ...] = ()
    """Words that are no names in it."""
    suffix: str = ""
    """What may follow a name."""
    module: str = ""
    """The key beside it that may hold the module of a name."""

    @property
    def words(self) -> tuple[str, ...]:
        """Built-in words of the key."""
        names = self.registry.words
        return (*self.further, *names, *(f"{name}{self.suffix}" for name in names if self.suffix))

    def built_in(self, word: str) -> bool:
        """Whether a word needs nothing of the user's own."""
        name = word.removesuffix(self.suffix).removeprefix(f"{self.registry.package}.")
        return word in self.further or name in self.registry.declared

    def trouble(self, word: str, key: str) -> str | None:
        """The error of a word, found without an import of what a path names. Raises UserError for a
        plug-in that does not load."""
        if word.endswith(".py"):
            return f"{key}={word}: name the object in the file, too: {word}:NAME"
        known = word in self.words or self.registry.is_path(word)
        if not known:
            load_plugins()
        return None if known or word in self.words else f"{key}={word}: {self.registry.missing(word, self.words)}"

    def load(self, word: str, key: str) -> None:
        """Find what a word that is not built in names. Raises UserError."""
        if trouble := self.trouble(word, key):
            raise UserError(trouble)
        self.registry.get(word.removesuffix(self.suffix), key)
