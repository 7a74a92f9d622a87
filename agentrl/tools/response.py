"""Answers of tools: `ToolResponse` as tools write them, `ToolResult` as agent loops read them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from agentrl.core.json_text import cleaned, to_json
from agentrl.core.numbers import is_reward
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord


class ModelError(Exception):
    """Raised by a tool after a mistake of the model; the model reads the message and continues."""


class ToolArgumentError(ModelError):
    """The arguments fit the schema but are wrong."""


@dataclass
class ToolResponse:
    """A tool's answer. `image` and `video` are lists; anything else raises ValueError."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.text, ToolResponse):  # verl's sandbox tool of 0.6 and 0.7 wraps its answer twice
            self.text = self.text.text
        for name, value in (("image", self.image), ("video", self.video)):
            if value is not None and not isinstance(value, list):
                raise ValueError(f"{name} is a {type(value).__name__}: put it in a list, even when there is only one")

    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether text is all there is to show."""
        return bool(self.text) and not (self.image or self.video)


@dataclass
class ToolResult:
    """One finished call: the answer for the model, and the outcome."""

    text: str
    reward: float = 0.0
    """Step reward of this call."""
    metrics: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome = Outcome.OK
    seconds: float = 0.0
    """Wall time, including the wait for a free slot."""
    error: str | None = None
    """The failure in one line, for logs and dumps; None without one."""
    images: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)

    def record(self, turn: int, name: str, arguments: Any) -> ToolCallRecord:
        """The call for dumps and metrics."""
        metrics = cleaned(self.metrics)
        return ToolCallRecord(turn, name, arguments, self.text, self.outcome, self.seconds, self.reward, metrics)

    @classmethod
    def model_error(cls, text: str) -> Self:
        """The model wrote a bad call; `text` tells it how to fix it."""
        return cls(text, outcome=Outcome.MODEL_ERROR, error=text)

    @classmethod
    def infra_error(cls, error: str) -> Self:
        """The tool failed; the model does not read `error`."""
        return cls("", outcome=Outcome.INFRA_ERROR, error=error)


def read_answer(answer: Any, shorten: Callable[[str], str]) -> ToolResult:
    """Read the answer of `execute`, in any of verl's forms: a response, or a tuple (response[, reward[, metrics]]).

    A response is a str, ToolResponse, a dict with text/image/video, or anything else, shown as JSON where it can be.
    Raises TypeError or ValueError when it is none of these.
    """
    parts = answer if isinstance(answer, tuple) else (answer,)
    if not 1 <= len(parts) <= 3:
        raise TypeError(f"returned a tuple of {len(parts)}: return (response, reward, metrics)")
    response, reward, metrics = (*parts, None, None)[:3]
    response = _read_response(response)
    return ToolResult(
        shorten(response.text or ""),
        reward=read_number(reward),
        metrics=dict(metrics or {}),
        images=list(response.image or []),
        videos=list(response.video or []),
    )


def read_number(value: Any) -> float:
    """A reward as people return it: None counts as 0. Raises TypeError or ValueError (core/numbers.py)."""
    number = 0.0 if value is None else float(value)
    if not is_reward(number):
        raise ValueError(f"returned the reward {number}")
    return number


def _read_response(value: Any) -> ToolResponse:
    if value is None or isinstance(value, str):
        return ToolResponse(text=value)
    if isinstance(value, dict) and value and value.keys() <= {"text", "image", "video"}:
        return ToolResponse(**value)
    if isinstance(value, dict | list):
        return ToolResponse(text=_as_json(value))
    if all(hasattr(value, name) for name in ("text", "image", "video")):  # ours, or verl's where it is installed
        return ToolResponse(value.text, value.image, value.video)
    return ToolResponse(text=str(cleaned(value) if isinstance(value, int) else value))


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # an integer longer than Python prints, or an object in itself
        return to_json(value, str)
