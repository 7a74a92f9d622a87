"""Reads task folders in the first format of Terminal-Bench: `task.yaml`, `run-tests.sh` and `docker-compose.yaml`.

The parser that `parser_name` names reads the reward in the output of `run-tests.sh`; without one its exit code is it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agentrl.containers import ContainerSpec
from agentrl.core.errors import UserError, one_line
from agentrl.core.foreign import read_yaml as read_yaml_text
from agentrl.core.inside import read_inside
from agentrl.tasks.harbor.compose import read_compose
from agentrl.tasks.harbor.fields import Fields, Passed
from agentrl.tasks.harbor.rewards import PARSERS
from agentrl.tasks.harbor.task import SOLUTION, TESTS, Copy, Script, Task

HIDDEN = ("tests", "run-tests.sh")
SOLUTIONS = ("solution.sh", "solution.yaml")


def read_yaml(folder: Path, passed: Passed = ()) -> Task:
    """The task in a folder with a `task.yaml`. Raises UserError."""
    file = folder / "task.yaml"
    values = _content(file, folder)
    if not isinstance(values, dict):
        raise UserError(f"{file} has no fields: write `instruction:` and the others there")
    fields = Fields(values, str(file), passed=passed)
    timeout = fields.number("max_agent_timeout_sec", 360)
    asked, mounts = read_compose(folder / "docker-compose.yaml", folder, fields, "client")
    before, after = _mounts(folder, mounts)
    return Task(
        folder=folder,
        instruction=_instruction(fields),
        spec=_spec(folder, asked),
        files=before,
        tests=_tests(folder, fields, after),
        solution=_solution(folder, timeout),
        agent_timeout=timeout,
        parser=_parser(fields),
        notes=tuple(fields.notes),
        metadata={key: values.get(key) for key in ("tags", "category", "difficulty")},
    )


def _instruction(fields: Fields) -> str:
    text = fields.text("instruction")
    for described in fields.get("descriptions") or ():  # before it had one text
        text = text or (described.get("description") if described.get("key") == "base" else None)
    if not text or not text.strip():
        raise UserError(f"{fields.file}: instruction is empty: write the task for the agent there")
    return text


def _parser(fields: Fields) -> str:
    name = fields.text("parser_name") or "exit code"
    if name not in PARSERS:
        why = f"nothing reads the verdict of {name!r}; there are {', '.join(PARSERS)}"
        raise UserError(f"{fields.file}: parser_name: {why}; leave the task out")
    if fields.get("run_tests_in_same_shell"):
        fields.notes.append("run_tests_in_same_shell has no effect: the tests have a shell of their own")
    return name


def _mounts(folder: Path, mounts: Sequence[Copy]) -> tuple[tuple[Copy, ...], tuple[Copy, ...]]:
    """Mounted files that come before the agent, and those that come with the tests. The solution never comes."""
    opened = list[Copy]()
    for mount in mounts:
        whole = mount.source == folder
        opened += [Copy(one, f"{mount.to}/{one.name}") for one in sorted(folder.iterdir())] if whole else [mount]
    tops = [(copy, copy.source.relative_to(folder).parts[0]) for copy in opened]
    before = tuple(copy for copy, top in tops if top not in (*HIDDEN, *SOLUTIONS))
    return before, tuple(copy for copy, top in tops if top in HIDDEN)


def _spec(folder: Path, asked: ContainerSpec) -> ContainerSpec:
    build = None if asked.image else asked.build or folder
    if build and not (build / "Dockerfile").is_file():
        raise UserError(f"{build}/Dockerfile is missing: write one")
    return replace(asked, build=build, env={"TEST_DIR": TESTS, **asked.env})


def _tests(folder: Path, fields: Fields, mounted: tuple[Copy, ...]) -> Script:
    script, tests = folder / "run-tests.sh", folder / "tests"
    if not script.is_file():
        raise UserError(f"{script} is missing: its exit code is the reward")
    files = (*((Copy(tests, TESTS),) if tests.exists() else ()), Copy(script, f"{TESTS}/{script.name}"))
    timeout = fields.number("max_test_timeout_sec", 60)
    return Script((*files, *mounted), f"{TESTS}/run-tests.sh", timeout=timeout)


def _solution(folder: Path, timeout: float) -> Script | None:
    script, steps = folder / "solution.sh", folder / "solution.yaml"
    if script.is_file():
        place = f"{SOLUTION}/{script.name}"
        return Script((Copy(script, place),), place, timeout=timeout)
    if not steps.is_file():
        return None
    typed = _content(steps, folder)
    if not isinstance(typed, list) or not all(isinstance(step, dict) for step in typed):
        raise UserError(f"{steps}: write a list of commands")
    return Script((), "\n".join(str(step.get("command", "")) for step in typed), timeout=timeout)


def _content(file: Path, folder: Path) -> Any:
    try:
        return read_yaml_text(read_inside(file, folder))
    except yaml.YAMLError as error:
        raise UserError(f"{file}: {one_line(error)}") from None
