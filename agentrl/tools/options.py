"""The keys that agentrl reads in the `config:` of a tool or an interaction, besides its own keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError

IN_THREAD_FIX = "set config.in_thread: true in its YAML"
"""For methods that block the event loop."""
ON_ERROR = ("infra", "tell_model")


@dataclass(frozen=True)
class ToolOptions:
    """How a tool's methods are called. Raises UserError on values that do not fit."""

    timeout: float | None = 60.0
    """Seconds for each call of create, execute, calc_reward and release; null: no limit."""
    retries: int = 0
    """Further tries after an infrastructure error; they repeat the call on the same instance."""
    max_concurrency: int | None = None
    """Calls at once over all trajectories; null: no limit for async methods, SYNC_CALLS for plain ones."""
    on_error: str = "infra"
    """An exception or timeout in execute is an infrastructure error (infra), or the model reads it (tell_model)."""
    in_thread: bool = False
    """Async methods run in threads too, each call in a separate event loop: for methods that block."""
    example: dict[str, Any] | None = None
    """Arguments that `agentrl tools test` and `agentrl doctor` call it with."""

    def __post_init__(self) -> None:
        timed = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool) and self.timeout > 0
        if self.timeout is not None and not timed:
            raise UserError(f"config.timeout is {self.timeout!r}: write seconds over 0, or null for no limit")
        if not (_is_int(self.retries) and self.retries >= 0):
            raise UserError(f"config.retries is {self.retries!r}: write a whole number, 0 or more")
        if self.max_concurrency is not None and not (_is_int(self.max_concurrency) and self.max_concurrency > 0):
            raise UserError(f"config.max_concurrency is {self.max_concurrency!r}: write a whole number over 0, or null")
        if not isinstance(self.in_thread, bool):
            raise UserError(f"config.in_thread is {self.in_thread!r}: write true or false")
        if self.on_error not in ON_ERROR:
            raise UserError(f"config.on_error is {self.on_error!r}: use one of {', '.join(ON_ERROR)}")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "ToolOptions":
        """The options among the keys of `config`; the rest belong to the tool."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
