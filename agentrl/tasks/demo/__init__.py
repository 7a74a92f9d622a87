"""Ready-made tasks, one file each: `agentrl data TASK` writes their rows."""

from importlib import import_module
from typing import Any

from agentrl.core.errors import UserError
from agentrl.tasks.demo.base import Option, Problem, Task

TASKS = {
    "arithmetic": "agentrl.tasks.demo.arithmetic:Arithmetic",
    "bank": "agentrl.tasks.demo.bank:Bank",
    "lookup": "agentrl.tasks.demo.lookup:Lookup",
    "programs": "agentrl.tasks.demo.programs:Programs",
    "reasoning_gym": "agentrl.tasks.demo.reasoning:ReasoningGym",
}


def task_class(name: str) -> type[Task]:
    """The class behind a name in TASKS."""
    module, _, attribute = TASKS[name].partition(":")
    found: type[Task] = getattr(import_module(module), attribute)
    return found


def make_task(name: str, options: dict[str, Any]) -> Task:
    """The task called `name` ("arithmetic", or "reasoning_gym:chain_sum" where a family has variants).

    Options left out take their defaults. Raises UserError on an unknown task, option or value.
    """
    family, _, variant = name.partition(":")
    if family not in TASKS:
        raise UserError(f"there is no task {name!r}; choose from {', '.join(TASKS)}")
    task = task_class(family)
    if task.VARIANT and not variant:
        raise UserError(f"{family} is a family of tasks: name one, as in {family}:{task.VARIANT}")
    if variant and not task.VARIANT:
        raise UserError(f"{family} has no variants; leave out {':' + variant!r}")
    if unknown := options.keys() - task.OPTIONS.keys():
        raise UserError(f"--{min(unknown).replace('_', '-')} is no option of the task {family}; leave it out")
    defaults = {key: option.default for key, option in task.OPTIONS.items()}
    return task(**({"variant": variant} if variant else {}), **(defaults | options))


__all__ = ["TASKS", "Option", "Problem", "Task", "make_task", "task_class"]
