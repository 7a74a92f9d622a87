"""Folders that are made once, and the chat template that is put into them.

Invariant: a model folder either does not exist or is complete. It is built under a temporary name in the same folder
and renamed when done, so a run that was killed half way leaves nothing that looks like a model.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.remote_files import made_once
from agentrl.core.resources import share

RECIPE = "agentrl.json"
"""How the folder was made: lets a later call tell whether it already holds what is asked for."""
TEMPLATE = Path("configs/templates/chatml_tools_compact.jinja")


def read_template(file: Path | None = None) -> str:
    """The text of a chat template, by default of one that shows tools in few tokens. Raises UserError."""
    file = file or share() / TEMPLATE
    if not file.is_file():
        raise UserError(f"chat template {file} does not exist")
    return file.read_text()


def make_once(out: Path, recipe: dict[str, Any], write: Callable[[Path], None]) -> bool:
    """Fill `out` by `write(folder)` unless it already holds what `recipe` describes; says whether it wrote.

    Raises UserError when `out` holds something else, which is never overwritten.
    """
    if out.exists():
        _check_same(out, recipe)
        return False

    def make(folder: Path) -> None:
        folder.mkdir()
        write(folder)
        (folder / RECIPE).write_text(json.dumps(recipe, indent=2) + "\n")

    made_once(out, make, f"{out} cannot be written")
    return True


def _check_same(out: Path, recipe: dict[str, Any]) -> None:
    note = out / RECIPE
    if not note.is_file():
        raise UserError(f"{out} exists and was not made by `agentrl model`; choose another folder or move it away")
    made = json.loads(note.read_text())
    wanted = json.loads(json.dumps(recipe))
    differing = sorted(key for key in made.keys() | wanted.keys() if made.get(key) != wanted.get(key))
    if differing:
        raise UserError(f"{out} was made with another {', '.join(differing)}; delete it or choose another folder")
