"""POST /submit: tests a completion with standard input and output that the request contains.

Expected outputs never enter the sandbox; they are compared here. A failure of the sandbox is a 500, never a rejected
answer.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Busy, CommandResult, Job, Limits, Result, Unavailable
from agentrl_sandbox.languages import RECIPES
from agentrl_sandbox.server.custom_extraction import extract_by_logic
from agentrl_sandbox.server.datasets import find_row, value
from agentrl_sandbox.server.extraction import all_blocks, best
from agentrl_sandbox.server.replies import Reply, result_reply, succeeded, text
from agentrl_sandbox.server.schema import MAX_TESTS, Submit, TestConfig, shared
from agentrl_sandbox.server.service import Call, Service

SHOWN = 1000
"""Characters of a passed test that the reply repeats."""


class Case(BaseModel):
    """A test: inputs and expected outputs."""

    input: dict[str, str]
    output: dict[str, str]


async def submit(service: Service, body: Submit, call: Call) -> Reply:
    """An EvalResult. Raises HTTPException, Busy."""
    config = body.config
    if config.language is None:
        raise HTTPException(400, "config.language is missing; name the language of the completion")
    cases = read_cases(value(find_row(config, body.id), "test"))
    try:
        code, kind = await extract(service, body.completion, config, call)
        result = await service.run(make_job(service, code, config, cases), call)
    except Busy:
        raise
    except Unavailable as error:
        raise HTTPException(400, str(error)) from None
    except SandboxError as error:
        raise HTTPException(500, f"the sandbox failed, which is no verdict on the answer: {error}") from None
    tests = judge(result, cases, config)
    call.fields["verdict"] = "accepted" if all(test["passed"] for test in tests) else "rejected"
    return {
        "id": body.id,
        "accepted": len(tests) == len(cases) and all(test["passed"] for test in tests),
        "extracted_code": code,
        "full_code": None,
        "test_code": None,
        "tests": tests,
        "extracted_type": kind,
        "extra": None,
    }


def read_cases(tests: Any) -> list[Case]:
    """The tests of a row. Raises HTTPException 400."""
    if not isinstance(tests, list) or not 0 < len(tests) <= MAX_TESTS:
        raise HTTPException(400, f"config.provided_data: test is not a list of 1 to {MAX_TESTS} tests")
    try:
        cases = [Case.model_validate(test) for test in tests]
    except ValidationError:
        cases = []
    if not cases or not all("stdin" in case.input and "stdout" in case.output for case in cases):
        raise HTTPException(400, 'config.provided_data: a test is {"input": {"stdin": ...}, "output": {"stdout": ...}}')
    return cases


async def extract(service: Service, completion: str, config: TestConfig, call: Call) -> tuple[str, str]:
    """The code of a completion, and how it was found."""
    blocks = all_blocks(completion, config.language or "")
    if config.custom_extract_logic is not None:
        blocks += await extract_by_logic(service, completion, config.custom_extract_logic, call)
    return best(blocks, config.language or "")


def make_job(service: Service, code: str, config: TestConfig, cases: Sequence[Case]) -> Job:
    """A job with one run per test."""
    language = config.language or ""
    compiled = language in RECIPES and RECIPES[language].compile is not None
    memory_mb = service.settings.memory_mb
    return Job(
        language=language,
        code=code,
        stdins=[case.input["stdin"].encode() for case in cases],
        compile_limits=Limits(wall=config.compile_timeout or 10, memory_mb=memory_mb),
        run_limits=shared(Limits(wall=config.run_timeout or (10 if compiled else 20), memory_mb=memory_mb), len(cases)),
        stop_on_failure=not config.extra.get("run_all_cases", False),
    )


def judge(result: Result, cases: Sequence[Case], config: TestConfig) -> list[Reply]:
    """An EvalTestCase per case, up to the first failure unless all are requested."""
    full = bool(config.extra.get("return_full_case", False))
    tests = []
    for case, run in zip_longest(cases, result.runs[: len(cases)]):
        one = Result(result.isolation, result.compiled, [run] if run else [])
        passed = run is not None and passes(run, case)
        tests.append({"passed": passed, "exec_info": result_reply(one), "test_info": info(case, full or not passed)})
        if not passed and not config.extra.get("run_all_cases", False):
            break
    return tests


def passes(run: CommandResult, case: Case) -> bool:
    """Whether a run succeeded with the expected output."""
    return succeeded(run) and not run.truncated and same_output(text(run.stdout), case.output["stdout"])


def info(case: Case, full: bool) -> dict[str, dict[str, str]]:
    """The test, in full or shortened."""
    return {
        side: {name: content if full else shortened(content) for name, content in getattr(case, side).items()}
        for side in ("input", "output")
    }


def shortened(content: str) -> str:
    """Its first characters."""
    return content if len(content) <= SHOWN else content[:SHOWN] + "..."


def same_output(actual: str, expected: str) -> bool:
    """Whether the lines are equal, ignoring case, outer space, and the fifth digit of numbers."""
    lines, wanted = actual.strip().split("\n"), expected.strip().split("\n")
    return len(lines) == len(wanted) and all(map(same_line, lines, wanted))


def same_line(line: str, wanted: str) -> bool:
    """Whether one line of output is right."""
    if line.strip().lower() == wanted.strip().lower():
        return True
    try:
        number, target = float(line), float(wanted)
    except ValueError:
        return False
    return abs(number - target) / max(abs(target), 1e-10) < 1e-5
