"""Checks every part of a run before it starts. It needs the tokenizer, but no
weights, no engine and no GPU.

Invariant: a check that raises becomes a finding; the other checks still run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema import Config
from agentrl.config.validate import sections_for
from agentrl.core.blocking import TEST_MAX_BLOCKED_SECONDS, LoopWatch
from agentrl.core.errors import UserError, one_line
from agentrl.data import load_dataset
from agentrl.doctor import containers, conversations, engines, memory, protocols, rows, services, template
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.rewards.checks import RUN
from agentrl.rollout.building import rollout_context, sandbox_for, scorer
from agentrl.rollout.loops import RolloutContext
from agentrl.tasks.runner import TaskRunner
from agentrl.training import device_for, load_tokenizer
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

OnFinding = Callable[[str, Finding], None]
"""Called with the area and the finding as soon as there is one."""


@dataclass
class Diagnosis:
    """The findings so far, and a made-up conversation to show."""

    config: Config
    on_finding: OnFinding
    findings: list[Finding] = field(default_factory=list)
    conversation: Trajectory | None = None
    """A made-up conversation on the first row, with real answers of the tools."""
    decode: Callable[[Sequence[int]], str] | None = None

    def note(self, area: str, found: Iterable[Finding]) -> None:
        """Add the findings of one check."""
        with self.checking(area):
            for finding in found:
                self._keep(area, finding)

    async def listen(self, area: str, found: AsyncIterator[Finding]) -> None:
        """Add the findings of an asynchronous check."""
        with self.checking(area):
            async for finding in found:
                self._keep(area, finding)

    @contextmanager
    def checking(self, area: str) -> Iterator[None]:
        """An exception of the body becomes a problem, and ends the body."""
        try:
            yield
        except Exception as error:  # templates, tools and rewards are other people's code
            self._keep(area, _as_problem(error))

    def _keep(self, area: str, finding: Finding) -> None:
        self.findings.append(finding)
        self.on_finding(area, finding)


def diagnose(config: Config, on_finding: OnFinding, *, split: str = "train", count: int = 3) -> Diagnosis:
    """Run all checks, with the first `count` rows of `split`."""
    diagnosis = Diagnosis(config, on_finding)
    diagnosis.note("config", _checked(config))
    asyncio.run(_diagnose(diagnosis, split, count))
    return diagnosis


async def _diagnose(diagnosis: Diagnosis, split: str, count: int) -> None:
    config = diagnosis.config
    sandbox = sandbox_for(config)
    device: Any = None
    with diagnosis.checking("engine"):
        device = device_for(config.trainer.device)
    with diagnosis.checking("setup"):
        tokenizer = load_tokenizer(config.model)
        env = rollout_context(config, tokenizer, None, sandbox)  # type: ignore[arg-type]  # nothing is sampled
        found = [replace(row, prompt=env.chat.see(row.prompt)) for row in _rows(config, tokenizer, split, count)]
        diagnosis.decode = env.chat.decode
        await _with_rows(diagnosis, env, found, sandbox, tokenizer)
        await env.tools.close()
        await env.interactions.close()
    await sandbox.close()
    if device is not None:
        processes = config.trainer.nnodes * config.trainer.n_gpus_per_node
        if config.model.path:
            diagnosis.note("memory", memory.memory(config, device, processes))
        await diagnosis.listen("engine", engines.engines(config, device))


async def _with_rows(diagnosis: Diagnosis, env: RolloutContext, found: list[Row], sandbox: Any, tokenizer: Any) -> None:
    config, first = diagnosis.config, found[0]
    chat = copy(env.chat)
    chat.check = "strict"  # also where the run uses a weaker one
    schemas = rows.prompt_tools(config, env.tools, first)
    diagnosis.note("rows", rows.lengths(config, chat, env.tools, found))
    diagnosis.note("rows", rows.contents(config, env.tools, env.interactions, found))
    diagnosis.note("template", template.append_only(chat, first.prompt, schemas))
    diagnosis.note("template", template.call_format(chat, config.rollout.multi_turn.format, first.prompt, schemas))
    diagnosis.note("template", template.dropped_fields(chat, first.prompt, schemas))
    if rows.runs_programs(config, found):
        diagnosis.note("protocols", protocols.protocols(env))
    watch = LoopWatch(TEST_MAX_BLOCKED_SECONDS, report=lambda _: None)
    with watch.watching():
        tried = await _in_container(diagnosis, env, first)
        await diagnosis.listen("user", services.user_answers(env.interactions, first))
        await _reward(diagnosis, chat, found, sandbox, tokenizer)
    diagnosis.note("timeouts", [problem(blocked.trouble, blocked.remedy) for blocked in watch.found.values()])
    messages = conversations.with_tools(first.prompt, schemas, tried)
    diagnosis.note("masks", _masks(diagnosis, chat, first, messages, schemas))


async def _in_container(diagnosis: Diagnosis, env: RolloutContext, row: Row) -> dict[str, conversations.Tried]:
    """Calls of the tools by name, in the row's container where it has one."""
    trajectory, tried = Trajectory(row, "doctor", 0), dict[str, conversations.Tried]()

    async def agent(trajectory: Trajectory, own_timeout: float | None = None) -> None:
        if len(env.tools):
            await diagnosis.listen("tools", services.tools_answer(env.tools, trajectory, tried))

    if not row.task:
        await agent(trajectory)
        return tried
    tasks = TaskRunner(diagnosis.config.rollout.containers)
    try:
        await diagnosis.listen("containers", containers.row_runs(tasks, row, agent, trajectory))
    finally:
        await tasks.release(trajectory)
        await tasks.close()
    return tried


async def _reward(diagnosis: Diagnosis, chat: Chat, found: list[Row], sandbox: Any, tokenizer: Any) -> None:
    with diagnosis.checking("reward"):
        judge = scorer(diagnosis.config, tokenizer, sandbox)
        if judge.loops_only:
            diagnosis.note("reward", [ok("the rollout itself sets it")])
            return
        await diagnosis.listen("reward", services.reward_scores(chat, judge, found))
        await judge.close()
        if _runs_code(diagnosis.config, judge):
            await diagnosis.listen("sandbox", services.sandbox_runs(sandbox))


def _runs_code(config: Config, judge: Any) -> bool:
    """Whether the reward uses the sandbox."""
    function = getattr(judge, "fn", None)
    asks = function is not None and "sandbox" in signature(function.function).parameters
    return bool(config.reward.sandbox_fusion.url) or asks


def _masks(
    diagnosis: Diagnosis, chat: Chat, row: Row, messages: list[dict[str, Any]], schemas: list[dict[str, Any]]
) -> Iterator[Finding]:
    given = len(row.prompt)
    ledger = chat.transcript(messages, schemas or None, given=given)
    turns = sum(message["role"] == "assistant" for message in messages[given:])
    diagnosis.conversation = Trajectory(row, "made up", 0, messages=messages, ledgers=[ledger], turns=turns)
    yield ok(f"{ledger.model_tokens} of {len(ledger)} tokens of a made-up conversation would be trained")


def _rows(config: Config, tokenizer: Any, split: str, count: int) -> Sequence[Row]:
    name = f"{split}_files"
    return load_dataset(config.data, getattr(config.data, name), tokenizer, what=f"data.{name}")[:count]


def _checked(config: Config) -> Iterator[Finding]:
    """All start-up checks of a run, not only the first that fails."""
    troubled = False
    for check in RUN:
        sections = sections_for(check, config)
        try:
            note = check(**sections) if sections is not None else None
        except UserError as error:
            troubled = True
            yield _as_problem(error)
        else:
            if note:
                yield warning(*_split(note))
    if not troubled:
        yield ok("the settings fit together")


def _as_problem(error: Exception) -> Finding:
    if isinstance(error, UserError):
        return problem(*_split(str(error)))
    return problem(f"{type(error).__name__}: {one_line(error)}", "this check could not run; the other checks did")


def _split(line: str) -> tuple[str, str]:
    """(problem, fix) of a message; the fix may be empty."""
    text, _, fix = line.rpartition("; ")
    return (text, fix) if text else (line, "")
