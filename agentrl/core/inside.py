"""Paths in a folder that another person may have made: a task, a run, a checkpoint.

Invariant: a path that such a folder gives is inside of it, with all links followed. Everything that reads, moves or
copies by such a path asks here first.
"""

import os
from pathlib import Path

from agentrl.core.errors import UserError

MOST_TEXT = 16 * 2**20
"""Bytes of a text that is read whole."""


def is_inside(path: Path, folder: Path, *, links: bool = True) -> bool:
    """Whether a path stays in the folder: as a full path, through `..` and, with `links`, through links."""
    follow = os.path.realpath if links else os.path.abspath
    try:
        return Path(follow(path)).is_relative_to(follow(folder))
    except ValueError:  # a NUL
        return False


def inside(path: Path, folder: Path, *, links: bool = True) -> Path:
    """The path. Raises UserError where it is not inside."""
    if not is_inside(path, folder, links=links):
        raise UserError(f"{str(path)!r} is outside of {folder}; put the file itself there, or leave the folder out")
    return path


def check_links(folder: Path) -> None:
    """Raises UserError where a link in a folder leads to something of this machine outside of it.

    A link to what this machine does not have is one for a container.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and path.exists():
                inside(path, folder)


def read_inside(file: Path, folder: Path, *, errors: str = "strict") -> str:
    """A text file of the folder. Raises UserError for one that leads out, is too large or is not UTF-8."""
    if not inside(file, folder).is_file():
        raise UserError(f"{file} is no file")
    if file.stat().st_size > MOST_TEXT:
        raise UserError(f"{file} has more than {MOST_TEXT >> 20} MiB: no text of a task or a run is that long")
    try:
        return file.read_text(encoding="utf-8", errors=errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: {error}") from None
