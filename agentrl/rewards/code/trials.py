"""Judges scripts of asserts between two sandboxes: the solution in one, the test in the other.

Invariants: the test and what it expects never enter a sandbox with the solution; only plain data leaves that one; a
verdict is that of a run in which the solution's answers belong to these calls in this order.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from agentrl.core.foreign import read_json
from agentrl.rewards.code.analysis import ScriptShape, read
from agentrl.rewards.code.values import MALFORMED
from agentrl.rewards.code.verdict import RUNTIME_ERROR, failure
from agentrl_sandbox.job import CommandResult, Job, Limits, Result

Run = Callable[[Job], Awaitable[Result]]

MAX_ROUNDS = 64
"""Rounds in which answers may lead to further calls."""
STATES: dict[str, bool | int] = {"passed": True, "failed": False, "error": RUNTIME_ERROR}


def program(*names: str) -> str:
    """Modules of this package as one program for a sandbox, which does not have the package."""
    folder = files("agentrl.rewards.code")
    texts = [folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in names]
    lines = [line for text in texts for line in text.splitlines() if line != "import __future__"]
    # The names that modules import from each other are there already.
    kept = [line for line in lines if not line.startswith("from agentrl.")]
    return "\n".join(["import __future__", *kept, ""])


HARNESS = program("plain", "callee", "runners", "harness")
REFEREE = program("plain", "callee", "remote_objects", "runners", "referee")


def framed(request: dict[str, Any]) -> str:
    """A request as the programs read it: its length in 16 digits, then JSON."""
    text = json.dumps(request)
    return f"{len(text):016d}{text}"


@dataclass
class ScriptTrial:
    """One script and its verdict."""

    shape: ScriptShape
    result: bool | int | None = None
    shown: CommandResult | None = None
    """The last run that the verdict rests on."""
    calls: list[Any] = field(default_factory=list)
    known: list[Any] = field(default_factory=list)
    """[[call, answer]], of the last run of the solution."""
    together: bool = False
    """The test passes what has no plain form, so it needs the solution's own process."""

    @property
    def open(self) -> bool:
        return self.result is None and not self.together

    def request(self) -> dict[str, Any]:
        """The request to the referee."""
        shape = self.shape
        return {
            "script": shape.source,
            "names": shape.names,
            "exceptions": shape.exceptions,
            "asserts": shape.asserts,
            "known": self.known,
        }

    def judge(self, reply: dict[str, Any]) -> None:
        """Process the referee's reply."""
        self.calls = reply["calls"]
        self.together = reply["state"] == "unsendable"
        if reply["sure"] and not self.together:
            self.result = STATES[reply["state"]]

    def answer(self, reply: dict[str, Any]) -> None:
        """Process the solution's answers."""
        self.known = [[call, answer] for call, answer in zip(self.calls, reply["answers"], strict=True)]
        if not self.shape.checks or '{"array": [' in json.dumps(reply["answers"]):
            return  # numpy's arrays have other operators: the referee applies them
        pairs = [(check, answer) for check, (_, answer) in zip(self.shape.checks, self.known, strict=True)]
        verdicts = [RUNTIME_ERROR if "raised" in answer else bool(check.passes(answer)) for check, answer in pairs]
        self.result = next((verdict for verdict in verdicts if verdict is not True), True)


Request = Callable[[ScriptTrial], dict[str, Any]]
Take = Callable[[ScriptTrial, dict[str, Any]], None]


class Trials:
    """All scripts of a row."""

    def __init__(self, run: Run, code: str, scripts: Sequence[str], *, limits: Limits, total: float) -> None:
        self.run = run
        self.code = code
        self.limits = limits
        self.left = total
        """Seconds for all remaining runs."""
        self.trials = [ScriptTrial(read(script)) for script in scripts]

    async def judge(self) -> list[ScriptTrial]:
        """The trials, each with a result or marked as `together`. Raises InfraError."""
        for trial in self.trials:
            trial.together = trial.shape.together
            trial.calls = [check.call for check in trial.shape.checks]
        await self._solution([trial for trial in self.trials if trial.open and trial.calls])
        for _ in range(MAX_ROUNDS):
            waiting = [trial for trial in self.trials if trial.open]
            if not waiting:
                break
            await self._round(waiting, REFEREE, {}, ScriptTrial.request, ScriptTrial.judge)
            await self._solution([trial for trial in waiting if trial.open])
        for trial in self.trials:
            if trial.open:
                trial.result = False  # every round the solution answered otherwise
        return self.trials

    async def _solution(self, trials: list[ScriptTrial]) -> None:
        files = {"solution.py": self.code.encode()}
        await self._round(trials, HARNESS, files, lambda trial: {"calls": trial.calls}, ScriptTrial.answer)

    async def _round(
        self, trials: list[ScriptTrial], code: str, files: dict[str, bytes], request: Request, take: Take
    ) -> None:
        """Send the request of each trial to a program, and have each take its reply."""
        stdins = await asyncio.to_thread(_written, trials, request)
        trials = [trial for trial in trials if trial.open]
        if not trials:
            return
        limits, left = self.limits, max(self.left, 0.001)
        inputs = [stdin.encode(errors="replace") for stdin in stdins]
        job = Job("python", code, inputs, files=files, compile_limits=limits, run_limits=limits, total=left)
        result = await self.run(job)
        runs: list[CommandResult | None] = [*result.runs, *[None] * (len(trials) - len(result.runs))]
        self.left -= sum(run.execution_time for run in runs if run is not None)
        for trial, run in zip(trials, runs, strict=True):
            trial.shown = run or trial.shown
            trial.result = failure(run)
            if trial.result is None and run is not None:
                await asyncio.to_thread(_take, trial, run, take)  # a reply may be long


def _written(trials: list[ScriptTrial], request: Request) -> list[str]:
    """The requests of all trials but those whose answers cannot be written again: too deep, for one."""
    texts = []
    for trial in trials:
        try:
            texts.append(framed(request(trial)))
        except MALFORMED:
            trial.result = False
    return texts


def _take(trial: ScriptTrial, run: CommandResult, take: Take) -> None:
    try:
        take(trial, read_json(run.stdout))
    except MALFORMED:
        trial.result = False
