r"""A simulated user that checks the answer: a right one ends the conversation, a wrong one gets a hint and a retry.

Shows: state in a dict under `instance_id`; `generate_response` returns whether to stop, the reply, and the turn's
score. The answer is the last `\boxed{...}`, else what follows `####`, else the last number.

A row has

    extra_info.interaction_kwargs = {"name": "checker", "ground_truth": "72", "hint": "Mind the units."}
"""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agentrl.core.errors import UserError
from agentrl.interactions import BaseInteraction
from agentrl.rewards.answers import final_answer, same_answer

Reply = tuple[bool, str, float, dict[str, Any]]


@dataclass
class Question:
    """One trajectory's state."""

    truth: str
    hint: str
    attempts: int = 0
    solved: bool = False


class CheckerInteraction(BaseInteraction):
    """config: `max_attempts` (3; null: no limit), `hint` (the reply to a wrong answer; a row may set its own)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.max_attempts: int | None = config.get("max_attempts", 3)
        self.hint = config.get("hint", "Check your steps and try again.")
        self.questions: dict[str, Question] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: Any = None, hint: str | None = None, **kwargs: Any
    ) -> str:
        """`ground_truth` and `hint` come from the row."""
        if ground_truth is None:
            raise UserError("extra_info.interaction_kwargs has no ground_truth: add it to the row")
        instance_id = instance_id or uuid4().hex
        self.questions[instance_id] = Question(str(ground_truth), hint or self.hint)
        return instance_id

    async def generate_response(self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any) -> Reply:
        """Right: stop, 1.0. Wrong: the hint, 0.0; stop after `max_attempts`."""
        question = self.questions[instance_id]
        question.attempts += 1
        answer = final_answer(_last_answer(messages))
        question.solved = answer is not None and same_answer(answer, question.truth)
        if question.solved:
            return True, "Right.", 1.0, {"attempts": question.attempts}
        stop = question.attempts == self.max_attempts
        verdict = "There is no answer in what you wrote." if answer is None else f"{answer} is wrong."
        return stop, f"{verdict} {question.hint}", 0.0, {"attempts": question.attempts}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """1.0 if the last answer was right."""
        return float(self.questions[instance_id].solved)

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the question."""
        self.questions.pop(instance_id, None)


class Gsm8kInteraction(BaseInteraction):
    """verl's interaction of that name, with its replies and scores: "#### 72", as for GSM8K's rows.

    Its only limit is `max_user_turns`.
    """

    right, wrong = (
        "Your response is correct!",
        "Your response is incorrect! You need to reflect on your answer and try again.",
    )

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.truths: dict[str, Any] = {}
        self.answers: dict[str, str] = {}

    async def start_interaction(self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any) -> str:
        """`ground_truth` comes from the row. Raises UserError without one."""
        if ground_truth is None:
            raise UserError("extra_info.interaction_kwargs has no ground_truth: add it to the row")
        instance_id = instance_id or uuid4().hex
        self.truths[instance_id], self.answers[instance_id] = ground_truth, ""
        return instance_id

    async def generate_response(self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any) -> Reply:
        """Right: stop, 1.0. Wrong: the model tries again, 0.0."""
        self.answers[instance_id] = _last_answer(messages)
        score = await self.calculate_score(instance_id)
        return score == 1.0, self.right if score == 1.0 else self.wrong, score, {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """GSM8K's score of the last answer."""
        from agentrl_verl.scorers import gsm8k  # only here: verl's layer may not be installed

        return float(gsm8k.compute_score(self.answers[instance_id], self.truths[instance_id]))

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the question."""
        self.truths.pop(instance_id, None)
        self.answers.pop(instance_id, None)


def _last_answer(messages: list[dict[str, Any]]) -> str:
    answers = (m.get("content") for m in reversed(messages) if m.get("role") == "assistant")
    return next(answers, None) or ""
