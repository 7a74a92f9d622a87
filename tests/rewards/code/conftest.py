"""A sandbox for all tests of this folder, and one line to grade with."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.core.sandbox import Sandbox
from agentrl.rewards.code import Verdict, grade, read_cases
from agentrl_sandbox.job import Limits

Grade = Callable[..., Verdict]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner) -> Iterator[Sandbox]:
    """A pool with the isolation of this host."""
    sandbox = Sandbox()
    yield sandbox
    runner.run(sandbox.close())


@pytest.fixture
def verdict(runner: asyncio.Runner, sandbox: Sandbox) -> Grade:
    """The verdict on code, by the test cases of a row."""

    def judge(code: str, ground_truth: Any, *, language: str = "python", wall: float = 20.0, **more: Any) -> Verdict:
        cases = read_cases(ground_truth)
        total = more.pop("total", 120.0)
        work = grade(sandbox.run, code, cases, language=language, limits=Limits(wall=wall), total=total)
        return runner.run(work)

    return judge
