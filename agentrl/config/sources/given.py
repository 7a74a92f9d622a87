"""One setting, and all of a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Given:
    """One setting as someone wrote it."""

    file: Path
    line: int
    path: str
    value: Any
    """As YAML or Hydra's grammar reads it; `${...}` is left as it is."""


@dataclass
class Source:
    """What a file sets, and what it leans on."""

    settings: list[Given] = field(default_factory=list)
    includes: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of what `defaults` lists and is not beside the file."""
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    """Line and what is wrong with it, where nothing can be read."""
    program: str = ""
    """The module that a script starts."""
