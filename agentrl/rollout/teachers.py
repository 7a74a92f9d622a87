"""The teacher of a finished trajectory: its number, and the prompt that a teacher with a context reads."""

from collections.abc import Mapping

from agentrl.chat import Chat
from agentrl.config.derived import teacher_of
from agentrl.config.schema import Teacher
from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.trajectory.trajectory import Outcome, Trajectory


class RowTeachers:
    """Writes into each ledger which of `teachers` it has. Raises UserError for a context that cannot be loaded."""

    def __init__(self, teachers: Mapping[str, Teacher], chat: Chat) -> None:
        self.teachers, self.chat = teachers, chat
        self.numbers = {name: number for number, name in enumerate(teachers)}
        self.contexts = {name: _function(name, each.context) for name, each in teachers.items() if each.context}

    async def assign(self, trajectory: Trajectory) -> None:
        """Set `teacher` and `teacher_prompt` of the trajectory's ledgers. Raises UserError where its row names no
        teacher, and where a context fails."""
        name = teacher_of(trajectory.row, self.teachers)
        if name is None or trajectory.validates or trajectory.outcome is Outcome.INFRA_ERROR:
            return
        for ledger in trajectory.ledgers:
            ledger.teacher = self.numbers[name]
        if name in self.contexts:
            await self._read_context(name, trajectory)

    async def _read_context(self, name: str, trajectory: Trajectory) -> None:
        """Ledgers that begin with the row's prompt get the context's in its place; a rewritten history has none, and is
        not distilled."""
        prompt = self.chat.see(trajectory.row.prompt)
        try:
            messages = await self.contexts[name].run((prompt, trajectory.row), {}, timeout=None)
            told = self.chat.prompt(self.chat.see(messages), trajectory.schemas)
        except Exception as error:  # the user's code
            raise UserError(f"teachers.{name}.context failed for row {trajectory.row.uid}: {error}") from error
        own = self.chat.prompt(prompt, trajectory.schemas)
        for ledger in trajectory.ledgers:
            ledger.teacher_prompt = told if ledger.ids[: ledger.prompt_length] == own else []
            ledger.teacher = ledger.teacher if ledger.teacher_prompt else -1


def _function(name: str, path: str) -> UserFunction:
    file, _, function = path.rpartition(":")
    return UserFunction(load_attribute(file, function, what=f"teachers.{name}.context"), owner=f"teacher {name!r}")
