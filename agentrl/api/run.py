"""A training run whose loop the caller writes.

Invariants: while it is open, no other run writes to its folder; a loop that ends early, by `break` or by an exception
of the caller's, leaves the last step saved; closing ends every thread and process of the run; signals ask for a stop
while a step runs, and keep their former effect in the caller's own code.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.api.border import short_errors
from agentrl.api.result import Result
from agentrl.config.schema import Config
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.opening import open_runtime
from agentrl.tracking.callbacks import Step
from agentrl.tracking.loggers import METRICS_FILE, read_metrics
from agentrl.tracking.resume_notes import resuming_from
from agentrl.train import Trainer, open_trainer
from agentrl.training.checkpoint.lineage import FOLDER, latest
from agentrl.training.checkpoint.restarts import Restarts, WorkerDied
from agentrl.training.checkpoint.run_start import run_folder
from agentrl.trajectory.store import fetch
from agentrl.trajectory.trajectory import Trajectory

KEY = "trainer.default_local_dir"

log = logging.getLogger(__name__)


class TrainingRun:
    """Made by `agentrl.training`. Iterate it for its steps; use it as a context manager to do more with it.

    Example:
        with agentrl.training("model.path=models/warm", rows=rows, reward=score) as run:
            for step in run:
                if step.metrics["rollout/reward_mean"] > 0.9:
                    break
            print(run.validate())
    """

    def __init__(self, config: Config, objects: UserObjects) -> None:
        self.config = config
        self.trajectories: list[Trajectory] = []
        """Trajectories of the last step."""
        self.run_dir = Path(config.trainer.default_local_dir)
        self._objects = objects
        self._trainer: Trainer | None = None
        self._restarts = Restarts(config, self.run_dir / FOLDER)
        self._stored: list[dict[str, float]] = []
        self._logged: list[dict[str, float]] = []
        self._folder = ExitStack()
        self._stack = ExitStack()

    @short_errors
    def __enter__(self) -> Self:
        if self._trainer is None:
            self._folder.enter_context(run_folder(self.config, KEY, self._objects)).say_changes()
            try:
                self._open()
            except BaseException:
                self._folder.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        early = kind is not None and issubclass(kind, GeneratorExit)
        self._trainer = None
        with self._folder:
            self._stack.__exit__(*((None, None, None) if early else (kind, error, trace)))

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left, each when it is done. Opens the run, and closes it again, where it is not open.

        Raises TooManyDrops, InfraError, UserError, and KeyboardInterrupt (saved first) where a signal asks for a stop.
        """
        return self.steps()

    def steps(self, *, pauses: bool = True) -> Iterator[Step]:
        """Iterate the steps. Without `pauses` signals ask for a stop between two steps, too."""
        with short_errors:
            if self._trainer is None and self._has_finished():
                return
            with nullcontext() if self._trainer is not None else self:
                yield from self._all_steps(pauses)

    def _all_steps(self, pauses: bool) -> Iterator[Step]:
        """The steps that are left; the run is opened again where a worker dies."""
        while (trainer := self._trainer) is not None:
            try:
                yield from self._steps_of(trainer, pauses)
                return
            except WorkerDied as died:
                self._stack.__exit__(type(died), died, died.__traceback__)
                self._restarts.after(died)
                self._open()

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self._opened().splits.total_steps

    @property
    def step(self) -> int:
        """The last step that is done; 0: none."""
        return self._opened().start

    @short_errors
    def validate(self) -> dict[str, float]:
        """`val/` metrics of the weights as they are; empty without validation rows."""
        trainer = self._opened()
        with trainer.catching_stops():
            metrics = trainer.validate(trainer.start)
            trainer.runtime.stop.check()
        return metrics

    @short_errors
    def save(self) -> Path | None:
        """Write a checkpoint of the last step, unless it is there; its folder. None before the first step."""
        trainer = self._opened()
        if trainer.start > 0 and not trainer.checkpoints.has(trainer.start):
            trainer.save(trainer.start, last=True)
        return self.checkpoint

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint in the run's folder."""
        return latest(self.run_dir / FOLDER)

    @property
    def history(self) -> list[dict[str, float]]:
        """Logged metrics of each training step of the run, with `step`; of earlier calls, those in metrics.jsonl."""
        # A later validation adds a line to its step.
        steps = {entry["step"]: entry for entry in reversed(self._records)}
        return [steps[step] for step in sorted(steps) if step > 0]

    @property
    def initial_validation(self) -> dict[str, float]:
        """Metrics of the validation before the first step, or of a run with trainer.val_only; empty without one."""
        if self.config.trainer.val_only:
            return self._logged[-1] if self._logged else {}
        return next((entry for entry in self._records if entry["step"] == 0), {})

    @property
    def _records(self) -> list[dict[str, float]]:
        return self._stored if self.config.trainer.val_only else [*self._stored, *self._logged]

    @property
    def result(self) -> Result:
        """The result so far; also once the run is closed."""
        history, before = self.history, self.initial_validation
        return Result(self.config, self.run_dir, history, self.trajectories, self.checkpoint, before)

    def _steps_of(self, trainer: Trainer, pauses: bool) -> Iterator[Step]:
        with closing(trainer.steps()) as steps:  # type: ignore[type-var]  # a generator
            for number, metrics in steps:
                trainer.start = number  # a second loop takes the steps that are left
                self.trajectories = trainer.tracker.sampled
                with self._saved_when_left(), trainer.runtime.stop.paused() if pauses else nullcontext():
                    yield Step(number, metrics, self.trajectories)

    @contextmanager
    def _saved_when_left(self) -> Iterator[None]:
        """A loop over the steps that ends in the body saves the step."""
        try:
            yield
        except GeneratorExit:
            self.save()
            raise

    def _open(self) -> None:
        """Open the run, again where a worker dies meanwhile."""
        self._trainer = None
        while self._trainer is None:
            try:
                self._stack, self._trainer = self._opening()
            except WorkerDied as died:
                self._restarts.after(died)
        self._read_history(self._trainer.start)
        self._logged = self._trainer.tracker.records

    def _has_finished(self) -> bool:
        """Whether no step is left to take under these settings; the model need not be loaded to know it."""
        with run_folder(self.config, KEY, self._objects) as start:
            if start.finished:
                log.warning("%s", resuming_from(start.finished, start.finished))
                self._read_history(start.finished)
            return start.finished > 0

    def _read_history(self, last: int) -> None:
        """Read the history up to the step `last` from metrics.jsonl; without it, take what this call knows."""
        known = read_metrics(self.run_dir / METRICS_FILE) or self._records
        self._stored, self._logged = [entry for entry in known if entry["step"] <= last], []

    def _opening(self) -> tuple[ExitStack, Trainer]:
        """A trainer, and what closes it."""
        config, objects = self._restarts.config, self._objects
        with ExitStack() as undo:
            runtime = undo.enter_context(closing(open_runtime(config, objects)))
            undo.callback(lambda: fetch(self.trajectories))
            trainer = undo.enter_context(open_trainer(config, runtime, objects))
            return undo.pop_all(), trainer

    def _opened(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("the run is closed: use it within `with agentrl.training(...) as run:`")
        return self._trainer
