"""The row source `env:NAME`: one row a seed, a task, or a line of its data. `env:NAME/val` has the held-out ones.

Invariant: the seeds of training and of held-out rows do not overlap. The samples of a row's group share its seed, so
they begin in the same state.
"""

import json
import logging
from collections.abc import Sequence
from functools import cache

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.core.points import ENVIRONMENT_KINDS, brings_rows, row_source, runs_the_model
from agentrl.data.lazy import LazyRows
from agentrl.environments.entry import EnvironmentEntry, read_entry
from agentrl.environments.outside import tasks_of
from agentrl.environments.worker import own_program, run_once
from agentrl.trajectory.message import Message, system_message
from agentrl.trajectory.row import Row

log = logging.getLogger(__name__)

HELD_OUT = "/val"
LOOP, PROGRAM_LOOP = "environment", "environment_program"


class EntryRows(LazyRows):
    """Rows of one entry: a seed each or, with `tasks`, the prompt of a task each."""

    def __init__(
        self, entry: EnvironmentEntry, numbers: range, source: str, tasks: Sequence[list[Message] | None] | None = None
    ) -> None:
        """`numbers`: seeds, or indices of tasks."""
        self.entry, self.numbers, self.source, self.tasks = entry, numbers, source, tasks
        self.written = entry.to_json()

    def __len__(self) -> int:
        return len(self.numbers)

    def row(self, index: int) -> Row:
        entry, number = self.entry, self.numbers[index]
        if self.tasks is None:
            key, loop = "seed", LOOP
            prompt = [*system_message(entry.system), _note(f"{entry.name} with seed {number}: its first observation")]
        else:
            key, loop = "number", PROGRAM_LOOP
            prompt = self.tasks[number] or [_note(f"{entry.name}, task {number}: the environment begins")]
        uid, info = f"env:{self.source}:{number}", {"environment": self.written, key: number}
        return Row(uid, prompt, data_source=entry.name, extra_info=info, agent_name=loop)


def _note(text: str) -> Message:
    """Stands for a prompt that the environment gives."""
    return {"role": "user", "content": f"({text})"}


@row_source("env", scored=True)
def environment_rows(argument: str, *, data: Data) -> Sequence[Row]:
    """The rows of the environment that `argument` names. Raises UserError where it cannot be started."""
    name, held_out = argument.removesuffix(HELD_OUT), argument.endswith(HELD_OUT)
    if not name:
        raise UserError("env: names no environment: write env:NAME, a name in data.environment_config_path")
    entry = read_entry(data.environment_config_path, name)
    kind = ENVIRONMENT_KINDS.get(entry.kind, f"environment {name}")
    if brings_rows(kind):
        brought: Sequence[Row] = entry.make().rows(entry, held_out)
        return brought
    middle = entry.first_seed + entry.rows
    numbers = range(middle, middle + entry.val_rows) if held_out else range(entry.first_seed, middle)
    if runs_the_model(kind):
        return EntryRows(entry, numbers, argument, tasks_once(json.dumps(entry.to_json())))
    try_once(json.dumps(entry.to_json()))
    return EntryRows(entry, numbers, argument)


@cache
def tasks_once(entry: str) -> Sequence[list[Message] | None]:
    """The prompts of an entry's tasks. Raises UserError where there are fewer than it asks for."""
    known = EnvironmentEntry(**json.loads(entry))
    tasks = tasks_of(known)
    have, wanted = len(tasks) - known.first_seed, known.rows + known.val_rows
    if have < wanted:
        held_out = min(known.val_rows, max(have, 0) // 5)
        raise UserError(
            f"environment {known.name}: it has {len(tasks)} tasks, and rows + val_rows is {wanted}: write "
            f"`rows: {max(have, 0) - held_out}, val_rows: {held_out}`"
        )
    return tasks


@cache
def try_once(entry: str) -> None:
    """Start an entry's environment a few times. Raises UserError where it does not start, and where one seed gives
    two beginnings: the samples of a group would not be comparable."""
    program = own_program("agentrl.environments.trial", EnvironmentEntry(**json.loads(entry)))
    if warning := run_once(program).get("warning"):
        log.warning("%s: %s", program.what, warning)
