"""The rooms of the package: an arrow goes down only."""

import ast
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
