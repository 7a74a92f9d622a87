"""Runs a solution against all of its test cases as one job, and grades the results.

Invariants: no expected output enters the sandbox; a passing verdict always rests on something that came out of it,
never on a return code alone; trouble of the sandbox's own raises InfraError.
"""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_json
from agentrl.rewards.code.cases import TestCases, read_cases, text_of
from agentrl.rewards.code.script import TestScript
from agentrl.rewards.code.trials import HARNESS, Run, Trials, framed
from agentrl.rewards.code.values import MALFORMED, as_expected, decode
from agentrl.rewards.code.verdict import COMPILE_ERROR, Verdict, compile_status, describe, failure
from agentrl_sandbox.job import CommandResult, Job, Limits


class Grader(ABC):
    """Runs and grades one shape of test cases."""

    forgeable = False
    in_harness = True
    """Whether the harness loads the solution, or it is the program."""

    def __init__(self, code: str, cases: TestCases, language: str) -> None:
        self.code = code
        self.cases = cases
        self.language = language

    def job(self, limits: Limits, total: float) -> Job:
        """All cases at once."""
        stdins = [self.stdin(index).encode(errors="replace") for index in range(len(self.cases))]
        own = self.code.encode()
        code, files = (HARNESS, {"solution.py": own}) if self.in_harness else (self.code, {})
        return Job(self.language, code, stdins, files=files, compile_limits=limits, run_limits=limits, total=total)

    @abstractmethod
    def stdin(self, index: int) -> str:
        """The standard input of case `index`."""

    @abstractmethod
    def passes(self, index: int, output: bytes) -> bool:
        """Whether the output of a run without errors is right."""


class Program(Grader):
    """Reads standard input, writes standard output; compared as verl does, exactly but for line breaks at the end."""

    in_harness = False

    def stdin(self, index: int) -> str:
        return text_of(self.cases.inputs[index])

    def passes(self, index: int, output: bytes) -> bool:
        expected = text_of(self.cases.outputs[index])
        return output.decode(errors="replace").rstrip("\n") == expected.rstrip("\n")


class Function(Grader):
    """A function whose value comes back as JSON."""

    def stdin(self, index: int) -> str:
        return framed({"fn": self.cases.fn_name, "args": self.cases.arguments(index)})

    def passes(self, index: int, output: bytes) -> bool:
        try:
            return as_expected(decode(read_json(output)["value"]), self.cases.outputs[index])
        except MALFORMED:
            return False


class Asserts(Grader):
    """Scripts that need the solution's own process; a token, read after the last assert, proves that they got there.

    What that process says of them is its own word.
    """

    forgeable = True

    def __init__(self, code: str, cases: TestCases, language: str) -> None:
        super().__init__(code, cases, language)
        self.token = secrets.token_hex()
        self.scripts = [TestScript(source, f"report_{secrets.token_hex(8)}") for source in cases.asserts]

    def stdin(self, index: int) -> str:
        script = self.scripts[index]
        return framed({"script": script.source, "report": script.report}) + self.token

    def passes(self, index: int, output: bytes) -> bool:
        try:
            reply = read_json(output)
            return reply["token"] == self.token and self.scripts[index].passes(reply["reports"])
        except MALFORMED:
            return False


async def grade(
    run: Run,
    code: str,
    cases: TestCases,
    *,
    language: str,
    limits: Limits,
    total: float,
    program: type[Grader] = Program,
    function: type[Grader] = Function,
) -> Verdict:
    """The verdict on `code`; `limits` hold for the compilation and each case, `total` seconds for all cases together.

    `program`, `function`: graders by the shape of the test cases.

    Raises InfraError when the sandbox fails, UserError when the row's test cases are no good.
    """
    if (cases.asserts or cases.fn_name) and language != "python":
        raise UserError(f"fn_name and assert_case are for python, not {language}: give inputs and outputs of a program")
    code = code.encode(errors="replace").decode()  # half a surrogate pair is no character
    if cases.asserts:
        return await _tried(run, code, cases, limits, total)
    kind = function if cases.fn_name else program
    return await _graded(run, kind(code, cases, language), limits, total)


async def _tried(run: Run, code: str, cases: TestCases, limits: Limits, total: float) -> Verdict:
    """Run test and solution in separate sandboxes; scripts that need one process run in one."""
    tried = await Trials(run, code, cases.asserts, limits=limits, total=total).judge()
    codes: list[bool | int] = [trial.result if trial.result is not None else False for trial in tried]
    metadata = [
        describe(index, (cases.asserts[index], None), result, None, trial.shown)
        for index, (result, trial) in enumerate(zip(codes, tried, strict=True))
    ]
    rest = [index for index, trial in enumerate(tried) if trial.together]
    forgeable = bool(rest) or any(trial.shape.forgeable for trial in tried)
    if rest:
        some = read_cases({"assert_case": [cases.asserts[index] for index in rest]})
        found = await _graded(run, Asserts(code, some, "python"), limits, total)
        for index, result, about in zip(rest, found.results, found.metadata, strict=True):
            codes[index], metadata[index] = result, dict(about) | {"case_index": index}
    return Verdict(codes, metadata, forgeable)


async def _graded(run: Run, grader: Grader, limits: Limits, total: float) -> Verdict:
    """All cases as one job."""
    cases = grader.cases
    result = await run(grader.job(limits, total))
    compiled = result.compiled
    failed = compile_status(compiled)
    runs: Sequence[CommandResult | None] = [run for run, _ in zip_longest(result.runs, range(len(cases)))]
    # In a thread: a reply may be long, and the loop has other work.
    codes: list[bool | int] = [COMPILE_ERROR] * len(runs) if failed else await asyncio.to_thread(_codes, grader, runs)
    metadata = [
        describe(index, _shown(cases, index), code, compiled, run)
        for index, (code, run) in enumerate(zip(codes, runs, strict=True))
    ]
    return Verdict(codes, metadata, grader.forgeable)


def _codes(grader: Grader, runs: Sequence[CommandResult | None]) -> list[bool | int]:
    failures = [failure(run) for run in runs]
    outputs = [b"" if run is None else run.stdout for run in runs]
    return [grader.passes(i, outputs[i]) if failed is None else failed for i, failed in enumerate(failures)]


def _shown(cases: TestCases, index: int) -> tuple[str, str | None]:
    if cases.asserts:
        return cases.asserts[index], None
    return text_of(cases.inputs[index]), text_of(cases.outputs[index])
