"""Every command that a page or a command's help names is one that this version takes: name, options, keys, files.

Those in blocks also run: test_pages.py. These checks hold for what is not run, too.
"""

import argparse
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agentrl.cli.commands import Parser, commands
from agentrl.cli.main import parse
from agentrl.config.keys import home, schema_keys
from agentrl.config.names import translate
from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.row_sources import split_source
from tests.docs.pages import PAGES, ROOT, blocks

MEANT_TO_FAIL = {"rollout.temprature", "actor_rollout_ref.rollout.name"}
SETTING = re.compile(r"[+~]{0,2}[a-z_]+[\w.]*=")


def shown(page: str) -> Iterator[str]:
    """`agentrl` commands of a page's blocks; in scripts and Kubernetes files, wherever they stand."""
    for block in blocks(PAGES[page]):
        texts = strings(yaml.safe_load(block.text)) if block.kind == "yaml" else block.commands
        for line in (line for text in texts for line in text.replace("\\\n", " ").splitlines()):
            if found := re.search(r"(?:^|[\w\"] )(agentrl [a-z].*)", line):
                yield found[1]


def strings(content: Any) -> Iterator[str]:
    if isinstance(content, dict | list):
        for item in content.values() if isinstance(content, dict) else content:
            yield from strings(item)
    elif isinstance(content, str):
        yield content


def in_words(page: str) -> set[str]:
    """Commands that stand in a page's sentences and tables."""
    text = re.sub(r"^```.*?^```$", "", PAGES[page].read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"\s+", " ", command) for command in re.findall(r"`(agentrl [^`]+)`", text)}


def examples() -> Iterator[tuple[str, str]]:
    """What the help pages of commands show."""
    for name, command in commands().items():
        text = (command.load().__doc__ or "").replace("\\\n", " ")
        for line in re.findall(r"^    (agentrl .*)$", text, re.MULTILINE) if command.keys else ():
            yield f"{name} --help", line


def parser_of(name: str) -> Parser:
    parser = Parser(prog=f"agentrl {name}")
    commands()[name].load().configure(parser)
    return parser


def words(line: str) -> list[str]:
    return [word for word in shlex.split(line, comments=True) if word not in ("...", "KEY=VALUE")]


def check_settings(where: str, command: str, settings: list[str]) -> None:
    keys = schema_keys(SCHEMAS["eval" if command == "generate" else command if command in SCHEMAS else "train"])
    for path, _, value in (setting.lstrip("+~").partition("=") for setting in settings):
        if (ROOT / "configs" / path / f"{value}.yaml").is_file() or path in MEANT_TO_FAIL or split_source(path):
            continue
        found = translate(path, value, keys).path
        assert not found or home(found, keys), f"{where}: {path}"


CASES = [*((page, line) for page in PAGES for line in shown(page)), *examples()]


@pytest.mark.prevents("pages describe keys and scripts that do not exist")
@pytest.mark.parametrize(("where", "line"), CASES, ids=[f"{where}: {line[:60]}" for where, line in CASES])
def test_options_and_keys_exist(where: str, line: str) -> None:
    name, *rest = words(line)[1:]
    assert name in commands()
    if {"--help", "-h"}.isdisjoint(rest):
        given = getattr(parse(parser_of(name), rest), "overrides", [])
        check_settings(where, name, [word for word in given if "=" in word or name != "plan"])


NAMED = [(page, line) for page in PAGES for line in sorted(in_words(page))]


@pytest.mark.parametrize(("where", "line"), NAMED, ids=[f"{where}: {line[:60]}" for where, line in NAMED])
def test_what_sentences_name_exists(where: str, line: str) -> None:
    """These may be cut short: a command without its arguments, options without their command's."""
    name, *rest = words(line)[1:]
    assert name in commands()
    known = known_words(parser_of(name))
    assert {word for word in rest if word.startswith("--")} <= known | {"--help"}
    if name in ("config", "engine", "tools", "sandbox"):
        assert set(rest[:1]) <= known
    check_settings(where, name, [word for word in rest if SETTING.match(word)])


def known_words(parser: argparse.ArgumentParser) -> set[str]:
    """Options and sub-commands, of sub-commands, too."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set(action.choices).union(*map(known_words, action.choices.values()))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_other_programs_are_there(page: str) -> None:
    rules = "".join((ROOT / file).read_text() for file in ("Makefile", "benchmarks/demos.mk", "tests/suites.mk"))
    targets = re.findall(r"^([\w-]+):", rules, re.MULTILINE)
    text = PAGES[page].read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert target in targets, target
    for file in re.findall(r"(?:python|-f) ((?:benchmarks|sandbox)/[\w./]+)", text):
        assert (ROOT / file).is_file(), file


def test_there_are_commands() -> None:
    assert len(CASES) > 60
    assert len(NAMED) > 40
