"""Verdicts, by the real sandbox: verl's codes for what it tells apart, in the three shapes of test cases."""

import asyncio
import json
import threading
from typing import Any

import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.core.foreign import read_json
from agentrl.core.sandbox import LanguageUnavailable
from agentrl.rewards.code import grade, grading, read_cases, trials
from agentrl_sandbox.job import CommandResult, Job, Limits, Result
from tests.rewards.code.conftest import Grade

pytestmark = pytest.mark.integration

SUM = {"inputs": ["1 2\n", "3 4", "5 5"], "outputs": ["3\n", "7", "11"]}
ADD = {"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]", '"a"\n"b"'], "outputs": ["3", "[1, 2]", '"ab"']}
CPP = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }"


def test_programs(verdict: Grade) -> None:
    found = verdict("a, b = map(int, input().split())\nprint(a + b)", SUM)
    assert found.results == [True, True, False]
    assert found.score == pytest.approx(2 / 3)
    assert not found.forgeable
    assert [case["status"] for case in found.metadata] == ["success", "success", "wrong_answer"]
    case = found.metadata[2]
    assert (case["input"], case["expected_output"], case["stdout"], case["exit_code"]) == ("5 5", "11", "10\n", 0)
    assert case["duration"] > 0


def test_programs_are_compared_as_verl_does(verdict: Grade) -> None:
    exact = {"inputs": [""] * 4, "outputs": ["1 2", "1 2\n\n", " 1 2", "1 2 "]}
    assert verdict("print('1 2')", exact).results == [True, True, False, False]


@pytest.mark.parametrize(
    ("code", "result", "status"),
    [
        ("print(3", -2, "runtime_error"),
        ("1 / 0", -2, "runtime_error"),
        ("print(3); raise SystemExit(1)", -2, "runtime_error"),
        ("import os; os.kill(os.getpid(), 9)", -2, "runtime_error"),
        ("while True: pass", -3, "timeout"),
        ("import time; time.sleep(60)", -3, "timeout"),
        ("", False, "wrong_answer"),
    ],
)
def test_codes(verdict: Grade, code: str, result: int, status: str) -> None:
    found = verdict(code, {"inputs": ["1 2"], "outputs": ["3"]}, wall=2.0)
    assert found.results == [result]
    assert found.metadata[0]["status"] == status


def test_a_compiled_program(verdict: Grade) -> None:
    found = verdict(CPP, SUM, language="cpp")
    assert found.results == [True, True, False]
    assert found.metadata[0]["compile_status"] == "Finished"


def test_one_failed_compilation_fails_all_cases(verdict: Grade) -> None:
    found = verdict("int main() { return x; }", SUM, language="cpp")
    assert found.results == [-4, -4, -4]
    assert {case["status"] for case in found.metadata} == {"compile_error"}
    assert "was not declared" in found.metadata[0]["compile_stderr"]


def test_functions(verdict: Grade) -> None:
    assert verdict("def add(a, b):\n    return a + b", ADD).results == [True, True, True]
    assert verdict("class Solution:\n    def add(self, a, b):\n        return a + b", ADD).score == 1.0
    # What the model prints is no part of the answer.
    assert verdict("def add(a, b):\n    print('adding', a)\n    return a + b", ADD).score == 1.0
    # Names that such solutions take for granted.
    assert verdict("def add(a: List, b: Optional[int]):\n    return reduce(lambda x, y: x + y, (a, b))", ADD).score == 1


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("def add(a, b): return None", False),
        ("def add(a, b): return a - b", False),
        ("def add(a, b): return object()", False),
        ("def add(a): return a", -2),
        ("def sub(a, b): return a", -2),
        ("def add(a, b): raise KeyError(a)", -2),
        ("def add(a, b): return input()", -2),
        ("def add(a, b):\n    while True: pass", -3),
        ("syntax error", -2),
    ],
)
def test_functions_that_fail(verdict: Grade, code: str, result: int) -> None:
    assert verdict(code, {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}, wall=2.0).results == [result]


def test_asserts(verdict: Grade) -> None:
    asserts = [
        "assert add(1, 2) == 3",
        "assert add(1, 2) == 4",
        "def check(candidate):\n    for i in range(3):\n        assert candidate(i, i) == 2 * i\ncheck(add)",
        "assert add(1, 2) == 3 and add([1], [2]) == [1, 2]",
        "assert sorted(add([3], [1])) == [1, 3]",
        "x = add(1, 2)\nassert x in (2, 3)\nassert isinstance(x, int)",
        "try:\n    add(1, 'a')\n    assert False\nexcept TypeError:\n    pass",
        "assert add(1, 2) == add(2, 1)",
        "assert add(0.1, 0.2) == 0.3",
        "assert abs(add(0.1, 0.2) - 0.3) < 1e-9",
        "add(1, None)",
    ]
    found = verdict("def add(a, b):\n    return a + b", {"assert_case": asserts})
    assert found.results == [True, False, True, True, True, True, True, True, False, True, -2]
    assert not found.forgeable
    needs_one_process = ["import io, sys\nsys.stdin = io.StringIO('3')\nassert add(1, 2) == int(input())"]
    found = verdict("def add(a, b):\n    return a + b", {"assert_case": [*asserts[:2], *needs_one_process]})
    assert found.results == [True, False, True]
    assert found.forgeable


def test_time_for_all_cases_together(verdict: Grade) -> None:
    """A slow program is slow, not a fault of the sandbox: the cases that no longer fit are time limits."""
    slow = "import time; time.sleep(1); print(input())"
    found = verdict(slow, {"inputs": list("abcdef"), "outputs": list("abcdef")}, total=3.5)
    assert found.results[0] is True
    assert found.results[-1] == -3
    assert set(found.results) == {True, -3}


def test_many_cases_are_one_job(verdict: Grade) -> None:
    numbers = [str(n) for n in range(60)]
    assert verdict("print(input())", {"inputs": numbers, "outputs": numbers}).score == 1.0


def judged_with(answer: Any) -> Any:
    async def run(job: Job) -> Result:
        if isinstance(answer, Exception):
            raise answer
        return answer

    cases = read_cases(SUM)
    return asyncio.run(grade(run, "print(1)", cases, language="python", limits=Limits(), total=10))


def test_trouble_of_the_sandbox_is_never_a_verdict() -> None:
    broken = CommandResult("Error", 0.0, None, b"", b"no such file: python3")
    for answer in (
        InfraError("gone"),
        LanguageUnavailable("cpp"),
        Result("x", runs=[broken] * 3),
        Result("x", compiled=broken),
    ):
        with pytest.raises(InfraError):
            judged_with(answer)


def test_languages_without_a_harness() -> None:
    with pytest.raises(UserError, match="fn_name and assert_case are for python, not cpp"):
        asyncio.run(
            grade(None, "", read_cases(ADD), language="cpp", limits=Limits(), total=1)  # type: ignore[arg-type]
        )


def test_expected_outputs_never_enter_the_sandbox() -> None:
    seen: list[Job] = []

    async def run(job: Job) -> Result:
        seen.append(job)
        return Result("x", runs=[CommandResult("Finished", 0.0, 0, b"", b"")] * len(job.stdins))

    rows: list[dict[str, Any]] = [
        {"inputs": ["1"], "outputs": ["secret-4711"]},
        {"inputs": ["1"], "outputs": ['"secret-4711"'], "fn_name": "f"},
        {"assert_case": ["assert f(1) == 'secret-4711', 'secret-4711'  # secret-4711"]},
    ]
    for row in rows:
        asyncio.run(grade(run, "x", read_cases(row), language="python", limits=Limits(), total=9))
    assert len(seen) == 3
    for job in seen:
        sent = [job.code.encode(), *job.stdins, *job.files.values()]
        assert not [part for part in sent if b"4711" in part]


FORGED = {
    "collisions": json.dumps({"value": {"set": [(2**61 - 1) * i for i in range(20_000)]}}).encode(),
    "lists": b'{"value": {"list": [' + b"[]," * 1_100_000 + b"[]]}}",
}


@pytest.mark.prevents("one forged reply of the sandbox stalls the trainer or fills its memory")
@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize(
    "asked", [{"fn_name": "f", "inputs": ["1"], "outputs": ["1"]}, {"assert_case": ["assert f(1) == 1"]}]
)
def test_a_forged_reply_is_a_wrong_answer_and_read_beside_the_loop(name: str, asked: dict, monkeypatch: Any) -> None:
    readers = set[int]()

    def read(text: bytes) -> Any:
        readers.add(threading.get_ident())
        return read_json(text)

    for module in (grading, trials):
        monkeypatch.setattr(module, "read_json", read)
    reply = FORGED[name] if "fn_name" in asked else b'{"answers": [' + FORGED[name] + b"]}"

    async def run(job: Job) -> Result:
        return Result("x", runs=[CommandResult("Finished", 0.0, 0, reply, b"")])

    work = grade(run, "x", read_cases(asked), language="python", limits=Limits(), total=9)
    assert asyncio.run(work).results == [False]
    assert readers
    assert threading.get_ident() not in readers
