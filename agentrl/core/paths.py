"""Paths that a user writes: on the command line, in YAML, in Python."""

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """A path with its `~` expanded; unlike in `Path.expanduser`, `~name` of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def absolute(path: str | Path) -> Path:
    """A path with `~` expanded, in the current folder if it is relative; links stay links."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def shown(path: str | Path) -> str:
    """A path as messages show it: relative where it is below the current folder."""
    place = absolute(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else str(place)
