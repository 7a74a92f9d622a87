"""The tasks of PyPI's reasoning-gym, one dataset row a question, scored by its own verifiers.

Each row carries what the verifier needs: the task's name and settings, and the generated entry, as JSON text (entries
differ too much from one another for parquet's columns).
"""

import json
import random
from typing import Any, ClassVar

from agentrl.core.errors import UserError
from agentrl.core.points import task
from agentrl.rewards.gym import make_dataset, score_answer
from agentrl.tasks.demo.base import Option, Problem, Task

REQUEST = "Put the final answer between <answer> and </answer>."


@task("reasoning_gym")
class ReasoningGym(Task):
    """One of reasoning-gym's tasks."""

    HELP = "a task of the package reasoning-gym, by its name there: reasoning_gym:chain_sum"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "settings": Option("the task's own settings, as in '{\"max_terms\": 3}'", default="{}", metavar="JSON"),
    }
    VARIANT = "chain_sum"
    ABILITY = "reasoning"
    REWARD = "agentrl.rewards.scorers:reasoning_gym"

    def __init__(self, *, variant: str, settings: str) -> None:
        self.name = variant
        self.DATA_SOURCE = f"reasoning_gym/{variant}"
        try:
            self.settings = dict(json.loads(settings))
        except (ValueError, TypeError):
            raise UserError(f"--settings {settings} is no JSON object") from None
        make_dataset(variant, **self.settings)

    def draw(self, rng: random.Random) -> Problem:
        """Draw the only entry of a data set with a new seed."""
        dataset = make_dataset(self.name, **self.settings | {"seed": rng.randrange(2**31), "size": 1})
        entry = dataset[0]
        note = {"name": self.name, "config": json.dumps(self.settings), "entry": self._stored(entry)}
        if score_answer(note, entry["answer"]) != float(dataset.score_answer(entry["answer"], entry)):
            raise UserError(f"reasoning_gym:{self.name} cannot be verified from a file; choose another task")
        question = f"{entry['question']}\n{REQUEST}"
        return Problem(question, str(entry["answer"]), {"reasoning_gym": note})

    def _stored(self, entry: dict[str, Any]) -> str:
        try:
            return json.dumps(entry)
        except TypeError as error:
            raise UserError(
                f"reasoning_gym:{self.name} cannot be kept in a file ({error}); choose another task"
            ) from None
