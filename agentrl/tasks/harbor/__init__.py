"""Task folders in the formats of Harbor and Terminal-Bench, run as they are."""

from agentrl.tasks.harbor.folder import find_tasks, read_task
from agentrl.tasks.harbor.format import HarborTask
from agentrl.tasks.harbor.task import Task

__all__ = ["HarborTask", "Task", "find_tasks", "read_task"]
