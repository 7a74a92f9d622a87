"""Environments of the `verifiers` package, unchanged, in a separate interpreter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.points import environment_kind
from agentrl.environments.own import EnvironmentKind, interpreter
from agentrl.environments.worker import EnvironmentProgram

WORKER = Path(__file__).parents[1] / "verifiers_program" / "worker.py"


@environment_kind("verifiers")
@dataclass(kw_only=True)
class VerifiersEnvironment(EnvironmentKind):
    """One taskset by the name of its package, with the agents and the harness that it brings or the settings name.

    `python`: an interpreter that has verifiers and the environment's package; None: this one. `settings`: the
    configuration of verifiers' environment, without the taskset's, which is `kwargs`. Raises UserError.
    """

    settings: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.settings or {}, dict):
            raise UserError(f"settings is {self.settings!r}; write the configuration of the environment, name: value")
        self.python = interpreter(self.python, self.folder, "verifiers", "and the package")

    def program(self, count: int, turns: int | None) -> EnvironmentProgram:
        """The program that lists the first `count` tasks, and rolls them out with at most `turns` turns."""
        about = {"id": self.id, "kwargs": self.kwargs, "settings": self.settings or {}, "count": count, "turns": turns}
        return EnvironmentProgram(str(self.python), WORKER, about, self.folder)
