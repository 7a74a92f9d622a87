"""One setting, and all of a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.tree import CHANGED


@dataclass(frozen=True)
class Given:
    """One setting as someone wrote it."""

    file: Path
    line: int
    path: str
    value: Any
    """As YAML or Hydra's grammar reads it; `${...}` is left as it is."""
    way: int = CHANGED
    """How it came, if it is no key: by `name=value`, in a file, by `+name=value`."""


@dataclass
class Source:
    """What a file sets, or one program that a script starts, and what it leans on."""

    settings: list[Given] = field(default_factory=list)
    base: list[Given] = field(default_factory=list)
    """What agentrl's own files set that `defaults` lists."""
    includes: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of what `defaults` lists and is not beside the file."""
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    """Line and what is wrong with it, where nothing can be read."""
    program: str = ""
    """The module, or the file, that a script starts."""
    line: int = 0
    """Where it is started."""
    folders: tuple[Path, ...] = ()
    """The folder in which it is started, if a script starts it."""
    launcher: str = ""
    """python, torchrun or ray."""
    certain: bool = True
    """Whether bash started it; else it was found in the text."""
    words: tuple[str, ...] = ()
    """Words that the program gets, with marks for what is not known."""
    lost: list[tuple[int, str]] = field(default_factory=list)
    """Line and text of words that stand behind the command, and that it does not get."""
    unset: frozenset[str] = frozenset()
    """Variables that the script reads and that nobody sets."""
