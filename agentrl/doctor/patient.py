"""An examination from head to foot. It needs the tokenizer, not the model's weights, no engine and no GPU.

Invariant: a part that cannot be examined is a finding, and the others still are.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema import Config
from agentrl.config.validate import sections_for
from agentrl.core.blocking import IMPATIENCE, LoopWatch
from agentrl.core.errors import UserError
from agentrl.data import load_dataset
from agentrl.doctor import engines, judging, memory, rows, script, services, template
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.rewards.checks import RUN
from agentrl.rollout.environment import environment, sandbox_for, scorer
from agentrl.rollout.loops import Environment
from agentrl.training import device_for, load_tokenizer
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

OnFinding = Callable[[str, Finding], None]
"""Called with the area and the finding, as they come."""


@dataclass
class Patient:
    """What is examined, as far as it could be put together."""

    config: Config
    on_finding: OnFinding
    findings: list[Finding] = field(default_factory=list)
    conversation: Trajectory | None = None
    """A made-up conversation over the first row, with the tools' own answers."""
    decode: Callable[[Sequence[int]], str] | None = None

    def note(self, area: str, found: Iterable[Finding]) -> None:
        """Keep what a part of the examination finds; whatever it raises is a problem."""
        try:
            for finding in found:
                self._keep(area, finding)
        except Exception as error:  # templates, tools and rewards are other people's code
            self._keep(area, _as_problem(error))

    async def listen(self, area: str, found: AsyncIterator[Finding]) -> None:
        """`note`, for what takes time."""
        try:
            async for finding in found:
                self._keep(area, finding)
        except Exception as error:
            self._keep(area, _as_problem(error))

    def _keep(self, area: str, finding: Finding) -> None:
        self.findings.append(finding)
        self.on_finding(area, finding)


def examine(config: Config, on_finding: OnFinding, *, split: str = "train", count: int = 3) -> Patient:
    """Everything, with the first `count` rows of `split`."""
    patient = Patient(config, on_finding)
    patient.note("config", _checked(config))
    asyncio.run(_examine(patient, split, count))
    return patient


async def _examine(patient: Patient, split: str, count: int) -> None:
    config = patient.config
    sandbox = sandbox_for(config)
    device: Any = None
    try:
        device = device_for(config.trainer.device)
    except UserError as error:
        patient.note("engine", [_as_problem(error)])
    try:
        tokenizer = load_tokenizer(config.model)
        env = environment(config, tokenizer, None, sandbox)  # type: ignore[arg-type]  # nothing is sampled
        found = [replace(row, prompt=env.chat.see(row.prompt)) for row in _rows(config, tokenizer, split, count)]
    except UserError as error:
        patient.note("setup", [_as_problem(error)])
    else:
        patient.decode = env.chat.decode
        await _with_rows(patient, env, found, sandbox, tokenizer)
        await env.tools.close()
        await env.interactions.close()
    await sandbox.close()
    if device is not None:
        processes = config.trainer.nnodes * config.trainer.n_gpus_per_node
        if config.model.path:
            patient.note("memory", memory.memory(config, device, processes))
        await patient.listen("engine", engines.engines(config, device))


async def _with_rows(patient: Patient, env: Environment, found: list[Row], sandbox: Any, tokenizer: Any) -> None:
    config, first = patient.config, found[0]
    chat = _strict(config, env.chat)
    schemas = env.tools.schemas(first.tool_selection)
    patient.note("rows", rows.lengths(config, chat, env.tools, found))
    patient.note("rows", rows.contents(config, env.tools, env.interactions, found))
    patient.note("template", template.append_only(chat, first.prompt, schemas))
    patient.note("template", template.format_found(chat, config.rollout.multi_turn.format))
    patient.note("template", template.round_trip(chat, chat.format, first.prompt, schemas))
    patient.note("template", template.dropped_fields(chat, first.prompt, schemas))
    watch = LoopWatch(IMPATIENCE, report=lambda _: None)
    with watch.watching():
        results = await _tools(patient, env, first)
        await patient.listen("user", services.user_answers(env.interactions, first))
        await _reward(patient, chat, found, sandbox, tokenizer)
    patient.note("timeouts", [problem(blocked.trouble, blocked.remedy) for blocked in watch.found.values()])
    messages = script.with_tools(first.prompt, schemas, results)
    patient.note("masks", _masks(patient, chat, first, messages, schemas))


def _strict(config: Config, chat: Chat) -> Chat:
    """The run's own, comparing to the letter, whatever the run's check leaves out."""
    return Chat(
        chat.tokenizer,
        format=config.rollout.multi_turn.format,
        check="strict",
        template_kwargs=config.data.apply_chat_template_kwargs,
        processor=chat.processor,
        stop_token_ids=chat.stop_token_ids,
    )


async def _tools(patient: Patient, env: Environment, row: Row) -> list[str]:
    """What the tools said to made-up calls."""
    said: list[str] = []
    if not len(env.tools):
        return said

    async def findings() -> AsyncIterator[Finding]:
        async for finding, result in services.tools_answer(env.tools, row):
            if result is not None:
                said.append(result.text)
            yield finding

    await patient.listen("tools", findings())
    return said


async def _reward(patient: Patient, chat: Chat, found: list[Row], sandbox: Any, tokenizer: Any) -> None:
    try:
        judge = scorer(patient.config, tokenizer, sandbox)
    except UserError as error:
        patient.note("reward", [_as_problem(error)])
        return
    await patient.listen("reward", judging.reward(chat, judge, found))
    await judge.close()
    if _runs_code(patient.config, judge):
        await patient.listen("sandbox", services.sandbox_runs(sandbox))


def _runs_code(config: Config, judge: Any) -> bool:
    """Whether the reward asks for the sandbox, or one is named."""
    function = getattr(judge, "fn", None)
    asks = function is not None and "sandbox" in signature(function.function).parameters
    return bool(config.reward.sandbox_fusion.url) or asks


def _masks(
    patient: Patient, chat: Chat, row: Row, messages: list[dict[str, Any]], schemas: list[dict[str, Any]]
) -> Iterator[Finding]:
    given = len(row.prompt)
    ledger = chat.transcript(messages, schemas or None, given=given)
    turns = sum(message["role"] == "assistant" for message in messages[given:])
    patient.conversation = Trajectory(row, "made up", 0, messages=messages, ledgers=[ledger], turns=turns)
    yield ok(f"{ledger.model_tokens} of {len(ledger)} tokens of a made-up conversation would be trained")


def _rows(config: Config, tokenizer: Any, split: str, count: int) -> list[Row]:
    data = config.data
    files, what = (data.train_files, "data.train_files") if split == "train" else (data.val_files, "data.val_files")
    found = load_dataset(data, files, tokenizer, what=what)
    return [found[i] for i in range(min(count, len(found)))]


def _checked(config: Config) -> Iterator[Finding]:
    """Every check that a run begins with, not only the first that fails."""
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
    text = " ".join(str(error).split())
    return problem(f"{type(error).__name__}: {text}", "this part could not be looked at; the others are")


def _split(line: str) -> tuple[str, str]:
    """Culprit and mend, where the line has both."""
    text, _, mend = line.rpartition("; ")
    return (text, mend) if text else (line, "")
