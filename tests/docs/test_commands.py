"""Every command that a page shows is one that this version takes: the option exists, the key exists, the file is there.

Pages whose commands are whole also run, from the first to the last: test_guides.py, test_measuring.py.
"""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli.main import COMMANDS, Parser, parse
from agentrl.config.keys import home, schema_keys
from agentrl.config.names import translate
from agentrl.config.schema.commands import SCHEMAS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MEANT_TO_FAIL = {"rollout.temprature", "actor_rollout_ref.rollout.name"}


def lines(page: Path, first: str) -> list[str]:
    """Shown command lines that begin with a word, comments and dots taken off."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    shown = [
        line.strip().removeprefix("$ ")
        for kind, block in blocks
        if kind in ("", "sh", "bash")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in shown if line.startswith(f"{first} ")]


def words(line: str) -> list[str]:
    return [word for word in shlex.split(line, comments=True) if word != "..."]


CASES = [(page.name, line) for page in PAGES for line in lines(page, "agentrl")]


@pytest.mark.parametrize(("page", "line"), CASES, ids=[f"{page}: {line[:60]}" for page, line in CASES])
def test_options_and_keys_exist(page: str, line: str) -> None:
    name, *rest = words(line)[1:]
    assert name in COMMANDS
    if not {"--help", "-h"}.isdisjoint(rest):
        return
    parser = Parser(prog=f"agentrl {name}")
    importlib.import_module(COMMANDS[name].module).configure(parser)
    settings = getattr(parse(parser, rest), "overrides", [])
    keys = schema_keys(SCHEMAS["eval" if name == "generate" else name if name in SCHEMAS else "train"])
    for path, _, value in (setting.lstrip("+~").partition("=") for setting in settings):
        if (ROOT / "configs" / path / f"{value}.yaml").is_file() or path in MEANT_TO_FAIL:
            continue
        found = translate(path, value, keys).path
        assert found is None or home(found, keys), f"{page}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_programs_are_there(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = page.read_text()
    for target in {word for line in lines(page, "make") for word in words(line)[1:2]}:
        assert target in targets, target
    for file in re.findall(r"(?:python|-f) ((?:benchmarks|sandbox)/[\w./]+)", text):
        assert (ROOT / file).is_file(), file


def test_there_are_commands() -> None:
    assert len(CASES) > 50
