"""A training run whose loop is in the caller's hands.

Invariants: while it is open, nobody else writes to its folder; who leaves the loop early, by `break` or by an error of
their own, finds the last step saved; what it has started ends with it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl.api.result import Result
from agentrl.config.schema import Config
from agentrl.rollout.parts import Parts
from agentrl.rollout.trajectory import Trajectory
from agentrl.runtime.restarts import Restarts, WorkerDied
from agentrl.runtime.supervising import run_folder
from agentrl.train import Step, Training, opened
from agentrl.training.checkpoints import FOLDER, latest


class TrainingRun:
    """Made by `agentrl.training`. Iterate it for its steps; use it as a context manager to do more with it.

    Example:
        with agentrl.training("model.path=models/warm", rows=rows, reward=score) as run:
            for step in run:
                if step.metrics["rollout/reward_mean"] > 0.9:
                    break
            print(run.validate())
    """

    def __init__(self, config: Config, parts: Parts) -> None:
        self.config = config
        self.history: list[dict[str, float]] = []
        """What each step logged, with `step`."""
        self.trajectories: list[Trajectory] = []
        """Those of the last step."""
        self.run_dir = Path(config.trainer.default_local_dir)
        self._parts = parts
        self._training: Training | None = None
        self._restarts = Restarts(config, self.run_dir / FOLDER)
        self._folder = ExitStack()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._training is None:
            self._folder.enter_context(run_folder(self.config, "trainer.default_local_dir"))
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
        self._training = None
        with self._folder:
            self._stack.__exit__(*((None, None, None) if early else (kind, error, trace)))

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left, each when it is done. Opens the run, and closes it again, where it is not open.

        Raises TooManyDrops, InfraError, UserError, and KeyboardInterrupt (saved first) where a signal asks for a stop.
        """
        return self._steps(held=False)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self._opened().feed.total_steps

    @property
    def step(self) -> int:
        """The last step that is done; 0: none."""
        return self._opened().taken

    def validate(self) -> dict[str, float]:
        """`val/` metrics of the weights as they are; empty without validation rows."""
        training = self._opened()
        return training.validate(training.taken)

    def save(self) -> Path | None:
        """Write a checkpoint of the last step, unless it is there; its folder. None before the first step."""
        self._opened().save()
        return self.checkpoint

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint in the run's folder."""
        return latest(self.run_dir / FOLDER)

    @property
    def result(self) -> Result:
        """What has come of the run so far; also once it is closed."""
        return Result(self.config, self.run_dir, self.history, self.trajectories, self.checkpoint)

    def all_steps(self) -> Iterator[Step]:
        """The same as iterating; a signal between two steps also ends the run in order."""
        return self._steps(held=True)

    def _steps(self, *, held: bool) -> Iterator[Step]:
        with nullcontext() if self._training is not None else self:
            while (training := self._training) is not None:
                try:
                    with training.stop if held else nullcontext():
                        yield from self._noted(training)
                    return
                except WorkerDied as died:
                    self._stack.__exit__(type(died), died, died.__traceback__)
                    self._restarts.after(died)
                    self._open()

    def _noted(self, training: Training) -> Iterator[Step]:
        steps: Any = training.steps()
        try:
            for step in steps:
                self.trajectories = step.trajectories
                yield step
        finally:
            steps.close()

    def _open(self) -> None:
        """Open the run, again where a worker dies meanwhile."""
        while True:
            self._stack = ExitStack()
            try:
                self._training = self._stack.enter_context(opened(self._restarts.config, self._parts))
            except WorkerDied as died:
                self._restarts.after(died)
                continue
            self._training.journal.records = self.history
            return

    def _opened(self) -> Training:
        if self._training is None:
            raise RuntimeError("the run is closed: use it within `with agentrl.training(...) as run:`")
        return self._training
