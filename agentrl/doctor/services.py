"""Checks that tools, users and the sandbox answer, and how fast; and that the reward tells right from wrong."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agentrl.chat import Chat
from agentrl.core.errors import InfraError, UserError, shortened
from agentrl.core.sandbox import Sandbox
from agentrl.doctor import conversations
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.interactions import InteractionSet
from agentrl.rewards.scorer import Scorer
from agentrl.tools import ToolSet
from agentrl.tools.response import ToolResult
from agentrl.tracking.fields import duration
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from agentrl_sandbox.job import Job

SLOW = 5.0
"""Seconds after which a tool call gets a warning."""


async def tools_answer(
    tools: ToolSet, trajectory: Trajectory, tried: dict[str, conversations.Tried]
) -> AsyncIterator[Finding]:
    """Create the tools for a trajectory, call each once with example arguments, release them; adds calls to `tried`."""
    row = trajectory.row
    session = tools.open("doctor", row.tools_kwargs, trajectory, selection=row.tool_selection)
    try:
        start = time.perf_counter()
        await session.start()
        if row.tools_kwargs:
            yield ok(f"{len(session.instances)} created for {row.uid} in {duration(time.perf_counter() - start)}")
        for name, runner in session.runners.items():
            arguments = runner.example()
            result = await session.call(name, arguments)
            tried[name] = arguments, result.text
            yield _tool_finding(name, arguments, result)
    except InfraError as error:
        yield problem(str(error), "fix the tool: a failure masks the sample")
    finally:
        await session.release()


def _tool_finding(name: str, arguments: Any, result: ToolResult) -> Finding:
    text = f"{name}({shortened(arguments)}) answered {shortened(result.text)!r} in {duration(result.seconds)}"
    if result.outcome is Outcome.INFRA_ERROR:
        return problem(f"{name}({shortened(arguments)}) failed: {result.error}", "fix the tool, or its config")
    if result.seconds > SLOW:
        return warning(text, "set timeout and max_concurrency in the tool's config; a step waits for its slowest call")
    return ok(text)


async def user_answers(interactions: InteractionSet, row: Row) -> AsyncIterator[Finding]:
    """Start the row's simulated user, get its reply to an answer, finalize it."""
    if row.interaction_kwargs is None or not len(interactions):
        return
    session = interactions.open("doctor", row.interaction_kwargs)
    try:
        start = time.perf_counter()
        await session.start()
        reply = await session.respond([*row.prompt, conversations.assistant(conversations.ANSWER)])
        over = "ends the conversation" if reply.stop else f"says {shortened(reply.text)!r}"
        yield ok(f"{session.runner.name} {over}, score {reply.score:g}, in {duration(time.perf_counter() - start)}")
    except InfraError as error:
        yield problem(str(error), "fix the interaction: a failure masks the sample")
    finally:
        await session.finalize()


async def sandbox_runs(sandbox: Sandbox) -> AsyncIterator[Finding]:
    """Run a line of Python in the sandbox, twice: the second time it is warm."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        try:
            await sandbox.run(Job("python", "print(6 * 7)", run_limits=sandbox.limits(10.0)))
        except (InfraError, UserError) as error:
            yield problem(f"the sandbox: {error}", "run `agentrl sandbox check`: it lists what is missing")
            return
        times.append(time.perf_counter() - start)
    where = sandbox.url or "an embedded pool"
    yield ok(f"the sandbox ({where}) ran a line of Python in {duration(times[0])}, then in {duration(times[1])}")


def answered(chat: Chat, row: Row, text: str) -> Trajectory:
    """A trajectory in which the model answered the row with `text`."""
    messages = [*row.prompt, conversations.assistant(text)]
    ledger = chat.transcript(messages, given=len(row.prompt))
    return Trajectory(row, f"doctor/{row.uid}/0", 0, messages=messages, ledgers=[ledger], turns=1)


async def reward_scores(chat: Chat, scorer: Scorer, rows: Sequence[Row]) -> AsyncIterator[Finding]:
    """Score two made-up answers to each row: the ground truth alone, and "I do not know."."""
    pairs, times = [], list[float]()
    for row in rows:
        truth = conversations.ANSWER if row.ground_truth is None else str(row.ground_truth)
        answers = [answered(chat, row, truth), answered(chat, row, "I do not know.")]
        for trajectory in answers:
            start = time.perf_counter()
            scorer.expect([trajectory.key])
            await scorer.score(trajectory)
            times.append(time.perf_counter() - start)
        pairs.append(answers)
    failed = [t for pair in pairs for t in pair if not t.scored]
    if failed:
        text = f"{failed[0].row.uid}: {failed[0].error or 'no score'}"
        yield problem(text, "fix the reward: a sample without a score is masked, so nothing is learned from it")
        return
    scores = [(right.reward or 0.0, wrong.reward or 0.0) for right, wrong in pairs]
    shown = ", ".join(f"{right:g} / {wrong:g}" for right, wrong in scores)
    slowest = max(times[1:], default=0.0)  # the first one waits for the function's process
    text = f"dry run: {shown} for the ground truth alone / 'I do not know.'; {slowest * 1000:.0f} ms at most"
    if all(right > wrong for right, wrong in scores):
        yield ok(text)
    else:
        fix = "fine if the reward needs a certain answer format or a tool's state; otherwise check the reward function"
        yield warning(text, fix)
