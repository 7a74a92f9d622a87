"""The base of loggers to a service outside.

Invariants:
- a service cannot delete records, so it keeps the first ones: a resumed run continues the same run
  there, and sends nothing until it is past the last step that was sent;
- a failing service costs its plots, never the run (see `Loggers`).
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import yaml

from agentrl.core.errors import UserError, needing, one_line
from agentrl.core.outputs import write_atomic
from agentrl.tracking.generations import Generation
from agentrl.tracking.live import LiveView

GENERATIONS = "val/generations"


@dataclass(frozen=True)
class RunInfo:
    """The run as a logger gets to know it."""

    project: str
    name: str
    folder: Path
    config_yaml: str = ""
    resume_step: float | None = None
    """The step of the checkpoint that the run resumes from; None or 0: it starts over; ADDS: it only adds to a record.
    """
    view: LiveView | None = None
    """What "console" writes to; None: it prints lines."""

    @property
    def config(self) -> dict[str, Any]:
        """All settings, in sections."""
        return yaml.safe_load(self.config_yaml) or {}


def memory_file(folder: Path, name: str) -> Path:
    """Where a run's folder keeps the id of its run at the service `name`, and the last step sent."""
    return folder / f".{name}.json"


class Service(ABC):
    """A Logger. A subclass sends; this one remembers."""

    name: ClassVar[str]
    """The name in `trainer.logger`."""
    package: ClassVar[str] = ""
    """The module to import; empty: that of the name."""
    run: Any
    """The run, as the service has it."""
    fix: ClassVar[str]
    """Advice for when the service refuses."""

    def __init__(self, run: RunInfo) -> None:
        """Raises UserError."""
        self._file = memory_file(run.folder, self.name)
        self.id, self.last_step = self._recall(resume=bool(run.resume_step))
        self.resumed = self.last_step is not None
        with needing(f"trainer.logger: {self.name}", f'"agentrl[{self.name}]" or drop it'):
            self.module: Any = import_module(self.package or self.name)
        try:
            self.begin(run)
        except Exception as error:
            raise UserError(f"trainer.logger: {self.name}: {one_line(error)}; {self.fix}, or drop it") from error
        self._remember()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of `step`."""
        if self._knows(step):
            return
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self.send(step, finite)
        self.last_step = step
        self._remember()

    def generations(self, step: int, rows: Sequence[Generation]) -> None:
        """Send some conversations of a validation as a table."""
        if not self._knows(step):
            self.send_table(step, rows)

    @abstractmethod
    def begin(self, info: RunInfo) -> None:
        """Begin a run, or continue the one called `self.id` if `self.resumed`; may set `self.id`."""

    def send(self, step: int, metrics: dict[str, float]) -> None:
        """Send numbers, by the `run` that most services have."""
        self.run.log(metrics, step=step)

    @abstractmethod
    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        """Send a table."""

    @abstractmethod
    def close(self) -> None:
        """Send what is pending; safe to call twice."""

    def _knows(self, step: int) -> bool:
        return self.last_step is not None and step <= self.last_step

    def _recall(self, *, resume: bool) -> tuple[str, int | None]:
        with suppress(OSError, ValueError, KeyError):
            kept = json.loads(self._file.read_text())
            if resume:
                return kept["id"], kept["heard"]
        return uuid4().hex[:16], None

    def _remember(self) -> None:
        write_atomic(self._file, [json.dumps({"id": self.id, "heard": self.last_step})])
