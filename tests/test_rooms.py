"""The rooms of the package: an arrow goes down only."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "agentrl"

ORDER = """
core trajectory http algorithms config chat tools interactions containers data tracking rewards tasks training engines
rollout gateway environments runtime train sft evaluation doctor serve view api cli
"""
"""Each room may import those before it."""
ROOMS = ORDER.split()
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"


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


def test_the_page_of_the_architecture_has_the_rooms_in_their_order() -> None:
    table = ARCHITECTURE.read_text().partition("| room | contains |")[2].partition("\n\n")[0]
    listed = re.findall(r"`agentrl/(\w+)(?:/|\.py)`", "\n".join(row.split(" | ")[0] for row in table.splitlines()))
    assert listed == ROOMS


def depends(file: Path) -> set[str]:
    """The files of the package that a file imports: at its top, within functions, or for types alone."""
    found = set[str | None]()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found |= {in_package(f"{module}.{name.name}") or in_package(module) for name in names}
            case ast.Import(names=names):
                found |= {in_package(name.name) for name in names}
    return {name for name in found if name is not None}


def in_package(module: str) -> str | None:
    """The file of a module of the package, as a path in it."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module.startswith("agentrl.") and file.is_file():
            return str(file.relative_to(PACKAGE))
    return None


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Files that import each other in a circle, the first again at the end; [] where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {str(file.relative_to(PACKAGE)): depends(file) for file in PACKAGE.rglob("*.py")}
    assert not circle_in(graph)


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
    """It is a package of its own, which registers itself."""
    assert not [file for file in PACKAGE.rglob("*.py") if any("agentrl_verl" in word for word in words(file))]


def test_the_verl_layer_imports_neither_the_commands_nor_the_python_api() -> None:
    for file in (PACKAGE.parent / "from_verl" / "agentrl_verl").rglob("*.py"):
        assert not {"api", "cli"} & set(imported(file)), file


def test_settings_and_rewards_know_nothing_of_verl() -> None:
    files = [file for room in ("core", "config", "rewards") for file in (PACKAGE / room).rglob("*.py")]
    found = {
        str(file.relative_to(PACKAGE))
        for file in files
        if any(re.search(r"(?<![a-z])verl(?![a-z])", word, re.IGNORECASE) for word in words(file))
    }
    assert found == NAMES_VERL
