"""The teacher of a finished trajectory: its number, the prompt that a teacher with a context reads, and the scores of
one on a server.

Invariant: a teacher that fails masks the trajectory, which counts as dropped; it is not trained on without scores.
"""

import asyncio
from collections.abc import Mapping

import numpy as np

from agentrl.chat import Chat
from agentrl.config.derived import teacher_of
from agentrl.config.schema import Teacher
from agentrl.core.clocks import now
from agentrl.core.errors import InfraError, UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.engines.teachers import ServerTeacher
from agentrl.rewards.scorer import without_verdict
from agentrl.trajectory.ledger import TEACHER_COLUMNS, Ledger
from agentrl.trajectory.trajectory import Outcome, Span, Trajectory


class RowTeachers:
    """Writes into each ledger which of `teachers` it has. Raises UserError for a context that cannot be loaded."""

    def __init__(
        self, teachers: Mapping[str, Teacher], chat: Chat, servers: Mapping[str, ServerTeacher], topk: int
    ) -> None:
        """`servers`: those of the teachers that have one; they report `topk` tokens."""
        self.teachers, self.chat, self.servers, self.topk = teachers, chat, servers, topk
        self.numbers = {name: number for number, name in enumerate(teachers)}
        self.contexts = {name: _function(name, each.context) for name, each in teachers.items() if each.context}

    async def assign(self, trajectory: Trajectory) -> None:
        """Set `teacher` and `teacher_prompt` of the trajectory's ledgers. Raises UserError where its row names no
        teacher, and where a context fails."""
        if trajectory.validates or trajectory.outcome is Outcome.INFRA_ERROR:
            return
        name = teacher_of(trajectory.row, self.teachers)
        if name is None:
            return
        for ledger in trajectory.ledgers:
            ledger.teacher = self.numbers[name]
        if name in self.contexts:
            await self._read_context(name, trajectory)

    async def score(self, trajectory: Trajectory) -> None:
        """Set the teacher's columns of each ledger, where its server has them. A failure becomes the outcome; raises
        UserError."""
        ledgers = [ledger for ledger in trajectory.ledgers if ledger.teacher >= 0 and ledger.model_tokens]
        name = teacher_of(trajectory.row, self.teachers) if ledgers else None
        server = self.servers.get(name or "")
        if server is None or trajectory.outcome is Outcome.INFRA_ERROR:
            return
        start = now()
        try:
            await asyncio.gather(*(self._score(server, ledger, trajectory.key) for ledger in ledgers))
        except InfraError as error:
            without_verdict(trajectory, f"teacher {name}: {error}", "mask")
        finally:
            trajectory.spans.append(Span("score", start, now()))

    async def _score(self, server: ServerTeacher, ledger: Ledger, key: str) -> None:
        """Fill the columns; scores behind a prompt of the teacher's are moved behind the ledger's."""
        prompt, start = ledger.teacher_prompt, ledger.prompt_length
        read = prompt + ledger.ids[start:], [0] * len(prompt) + ledger.mask[start:]
        ids, mask = read if prompt else (ledger.ids, ledger.mask)
        scores = await server.top_k(ids, mask, self.topk, key=key, media=ledger.media)
        for name, column in zip(TEACHER_COLUMNS if self.topk else TEACHER_COLUMNS[:1], scores, strict=False):
            before = np.zeros((start, *column.shape[1:]), column.dtype)
            setattr(ledger, name, np.concatenate([before, column[len(prompt) :]]) if prompt else column)

    async def _read_context(self, name: str, trajectory: Trajectory) -> None:
        """Ledgers that begin with the row's prompt get the context's in its place; a rewritten history has none, and is
        not distilled."""
        prompt = self.chat.see(trajectory.row.prompt)
        try:
            messages = await self.contexts[name].run((prompt, trajectory.row), {}, timeout=None)
            theirs = self.chat.prompt(self.chat.see(messages), trajectory.schemas)
        except Exception as error:  # the user's code
            raise UserError(f"teachers.{name}.context failed for row {trajectory.row.uid}: {error}") from error
        own = self.chat.prompt(prompt, trajectory.schemas)
        for ledger in trajectory.ledgers:
            ledger.teacher_prompt = theirs if ledger.ids[: ledger.prompt_length] == own else []
            ledger.teacher = ledger.teacher if ledger.teacher_prompt else -1


def _function(name: str, path: str) -> UserFunction:
    file, _, function = path.rpartition(":")
    return UserFunction(load_attribute(file, function, what=f"teachers.{name}.context"), owner=f"teacher {name!r}")
