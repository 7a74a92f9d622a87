"""The rooms of the package: an arrow goes down only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "agentrl"

ORDER = """
core trajectory http algorithms config chat tools interactions containers data tracking rewards tasks training engines
rollout gateway environments runtime train sft evaluation doctor view verl api cli
"""
"""Each room may import those before it."""
ROOMS = ORDER.split()


def imported(file: Path) -> Iterator[str]:
    """The rooms that a file imports, wherever in the file, and those that its strings name."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom(module="agentrl"):
                yield from (alias.name for alias in node.names if alias.name in ROOMS)
            case ast.ImportFrom(module=str(name)) | ast.alias(name=name) | ast.Constant(value=str(name)):
                parts = name.split(".")
                if parts[0] == "agentrl" and len(parts) > 1 and parts[1] in ROOMS:
                    yield parts[1]


def test_no_room_imports_one_above_it() -> None:
    upwards = []
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).with_suffix("").parts[0]
        if room not in ("__init__", "__main__", "share"):
            above = ROOMS[ROOMS.index(room) + 1 :]
            upwards += [f"{file.relative_to(PACKAGE)} -> {name}" for name in imported(file) if name in above]
    assert not upwards


def test_the_sandbox_imports_nothing_of_agentrl() -> None:
    for file in (PACKAGE.parent / "sandbox" / "agentrl_sandbox").rglob("*.py"):
        assert not list(imported(file)), file


NAMES_VERL = {
    "rewards/scorer.py",  # an error gives the field that sets a score in verl's agent loops
}
"""Files of the rooms that a compatibility layer adds to which have the word in their code all the same."""


def words(file: Path) -> Iterator[str]:
    """Identifiers and strings of a file, without its docstrings."""
    tree = ast.parse(file.read_text())
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in prose:
            yield str(node.value)
        yield from (str(getattr(node, field, "")) for field in ("id", "attr", "arg", "name", "asname", "module"))


def test_nothing_imports_the_verl_layer() -> None:
    """It registers itself: its folder can become a package of its own."""
    outside = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] != "verl"]
    assert not [file for file in outside if "verl" in imported(file)]


def test_settings_and_rewards_know_nothing_of_verl() -> None:
    files = [file for room in ("core", "config", "rewards") for file in (PACKAGE / room).rglob("*.py")]
    found = {
        str(file.relative_to(PACKAGE))
        for file in files
        if any(re.search(r"(?<![a-z])verl(?![a-z])", word, re.IGNORECASE) for word in words(file))
    }
    assert found == NAMES_VERL
