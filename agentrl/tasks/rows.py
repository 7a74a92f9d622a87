"""What a row asks for: the arguments of its task format."""

from collections.abc import Mapping
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.points import TASK_FORMATS
from agentrl.tasks.format import TaskArguments, TaskFormat
from agentrl.trajectory.row import Row

PLAIN = "container"
"""The format of rows that describe their container themselves."""
KEY = "extra_info.task.format"


def has_container(row: Row) -> bool:
    """Whether a row has a container: `extra_info` has a mapping `task` with a `format`, or a mapping `container`."""
    extra_info = row.extra_info
    if "task" not in extra_info and "container" not in extra_info:
        return False
    return _task(row) is not None or isinstance(extra_info.get("container"), Mapping)


def arguments_of(row: Row) -> TaskArguments:
    """The arguments of the format of a row that has a container, `format` among them."""
    return {**(_task(row) or {"format": PLAIN, **row.extra_info["container"]})}


def task_for(row: Row) -> TaskFormat:
    """The task of a row that has a container. Raises UserError, which begins with the row's uid."""
    arguments = arguments_of(row)
    try:
        task: TaskFormat = TASK_FORMATS.make(arguments["format"], KEY, arguments)
    except UserError as error:
        raise UserError(f"{row.uid}: {error}") from None
    return task


def _task(row: Row) -> Mapping[str, Any] | None:
    """Other columns of that name, such as a task's name as text, are the user's own."""
    task = row.extra_info.get("task")
    return task if isinstance(task, Mapping) and isinstance(task.get("format"), str) else None
