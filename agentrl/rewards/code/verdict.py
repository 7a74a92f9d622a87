"""The result of each case, with verl's codes and names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import InfraError
from agentrl_sandbox.job import CommandResult

SANDBOX_ERROR, RUNTIME_ERROR, TIMEOUT, COMPILE_ERROR = -1, -2, -3, -4
STATUS = {
    True: "success",
    False: "wrong_answer",
    SANDBOX_ERROR: "sandbox_error",
    RUNTIME_ERROR: "runtime_error",
    TIMEOUT: "timeout",
    COMPILE_ERROR: "compile_error",
}
COMPILED = {"compile_status": "status", "compile_duration": "execution_time", "compile_stderr": "stderr"}
RUN = {"run_status": "status", "exit_code": "return_code", "duration": "execution_time"}
RUN |= {name: name for name in ("stdout", "stderr", "limit_hit")}
"""verl's keys, and the attributes of a `CommandResult` that they show."""
SHOWN_CHARACTERS = 2000
"""Characters of output that metadata keeps."""


@dataclass(frozen=True)
class Verdict:
    """The verdicts on a solution, case by case."""

    results: Sequence[bool | int]
    """True, False (wrong), -2 runtime error, -3 time limit, -4 compilation failed. -1, trouble of the sandbox's own,
    never stands here: it is an InfraError."""
    metadata: Sequence[Mapping[str, Any]]
    """One a case, with verl's keys."""
    forgeable: bool = False
    """Part of the verdict comes from the solution's own process."""

    @property
    def score(self) -> float:
        """Share of the cases passed."""
        return sum(result is True for result in self.results) / len(self.results)

    def share(self, status: str) -> float:
        """Share of the cases with that status."""
        return sum(STATUS[result] == status for result in self.results) / len(self.results)


def failure(run: CommandResult | None) -> int | None:
    """The code of a run that cannot have passed; None where its output decides. Raises InfraError."""
    if run is None:
        return TIMEOUT  # left out: the runs before it used up the time for all
    if run.status == "Error":
        raise InfraError(f"the sandbox could not start the program: {text(run.stderr)}")
    if run.status == "TimeLimitExceeded" or run.limit_hit in ("time", "cpu"):
        return TIMEOUT
    return RUNTIME_ERROR if run.return_code else None


def compile_status(compiled: CommandResult | None) -> str | None:
    """verl's word for a compilation that failed; None where it did not. Raises InfraError."""
    code = failure(compiled) if compiled is not None else None
    return None if code is None else {TIMEOUT: "compile_timeout"}.get(code, "compile_error")


def describe(
    index: int,
    shown: tuple[str, str | None],
    result: bool | int,
    compiled: CommandResult | None,
    run: CommandResult | None,
) -> dict[str, Any]:
    """The metadata of a case; `shown` is its input and its expected output."""
    status = compile_status(compiled) if result == COMPILE_ERROR else STATUS[result]
    about = {"case_index": index, "input": shown[0], "expected_output": shown[1], "status": status}
    about |= {"api_request_error": None, "api_status": "Success" if isinstance(result, bool) else "Failed"}
    for command, names in ((compiled, COMPILED), (run, RUN)):
        values = {name: getattr(command, attribute, None) for name, attribute in names.items()}
        about |= {name: text(value) if isinstance(value, bytes) else value for name, value in values.items()}
    return about


def text(output: bytes) -> str:
    """Output to be shown."""
    return output[: 4 * SHOWN_CHARACTERS].decode(errors="replace")[:SHOWN_CHARACTERS]
