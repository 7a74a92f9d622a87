"""Ready-made tasks, one file each: `agentrl data TASK` writes their rows. A new one is a new file here."""

from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.points import TASKS
from agentrl.tasks.demo.base import Option, Problem, Task

KEY = "TASK"


def split_variant(name: str) -> tuple[str, str]:
    """(task, variant) of a name as `reasoning_gym:chain_sum`; a path has no variant."""
    family, _, variant = name.partition(":")
    return (family, variant) if family in TASKS else (name, "")


def make_task(name: str, options: dict[str, Any]) -> Task:
    """The task called `name` ("arithmetic", "reasoning_gym:chain_sum" where a family has variants, "file.py:Class").

    Options left out take their defaults. Raises UserError on an unknown task, option or value.
    """
    family, variant = split_variant(name)
    task: type[Task] = TASKS.get(family, KEY)
    if task.VARIANT and not variant:
        raise UserError(f"{family} is a family of tasks: name one, as in {family}:{task.VARIANT}")
    if variant and not task.VARIANT:
        raise UserError(f"{family} has no variants; leave out {':' + variant!r}")
    if unknown := options.keys() - task.OPTIONS.keys():
        raise UserError(f"--{min(unknown).replace('_', '-')} is no option of the task {family}; leave it out")
    defaults = {key: option.default for key, option in task.OPTIONS.items()}
    made: Task = TASKS.make(family, KEY, **({"variant": variant} if variant else {}), **(defaults | options))
    return made


__all__ = ["KEY", "TASKS", "Option", "Problem", "Task", "make_task", "split_variant"]
