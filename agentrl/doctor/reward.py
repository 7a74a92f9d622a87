"""Checks the reward: does it run, how long does it take, does a right answer score more than a wrong one?"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agentrl.chat import Chat
from agentrl.doctor import conversations
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.rewards import Scorer
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory


def answered(chat: Chat, row: Row, text: str) -> Trajectory:
    """A trajectory in which the model answered the row with `text`."""
    messages = [*row.prompt, conversations.assistant(text)]
    ledger = chat.transcript(messages, given=len(row.prompt))
    return Trajectory(row, f"doctor/{row.uid}/0", 0, messages=messages, ledgers=[ledger], turns=1)


async def reward(chat: Chat, scorer: Scorer, rows: Sequence[Row]) -> AsyncIterator[Finding]:
    """Score two made-up answers to each row: the ground truth alone, and "I do not know."."""
    pairs, times = [], list[float]()
    for row in rows:
        answers = [answered(chat, row, _truth(row.ground_truth)), answered(chat, row, "I do not know.")]
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


def _truth(ground_truth: Any) -> str:
    return str(ground_truth) if ground_truth is not None else conversations.ANSWER
