"""What a run leaves behind and shows while it goes: its folder, metrics, live view, dumps.

Invariant: nothing in here changes what is trained; a run with every logger off takes the same steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.config import to_yaml
from agentrl.config.schema import Config
from agentrl.rollout.trajectory import Trajectory
from agentrl.runtime.closing import closing, dump_file
from agentrl.runtime.runtime import Metrics
from agentrl.tracking import LiveView, Phases, memory_metrics, open_loggers, write_trajectories


class Journal:
    """Context manager around the steps of a run."""

    def __init__(
        self, config: Config, total_steps: int, resume_step: int, decode: Callable[[Sequence[int]], str]
    ) -> None:
        """`resume_step` is the step of the checkpoint that the run goes on from, 0 for a new run."""
        trainer = config.trainer
        self.trainer = trainer
        self.decode = decode
        self.run_dir = Path(trainer.default_local_dir)
        self.view = LiveView(total_steps, f"{trainer.project_name} / {trainer.experiment_name}", trainer.live)
        self.loggers = open_loggers(
            trainer.logger, self.run_dir, resume_step=resume_step, config_yaml=to_yaml(config), view=self.view
        )
        self._phases = Phases(self.view.phase)
        self._tokens: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.loggers.close)
        self._stack.enter_context(self.view)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if error is None:
            for piece in closing(self.trainer, self.decode):
                self.view.show(piece)

    def phase(self, name: str, *, tokens: int = 0) -> AbstractContextManager[None]:
        """Time what runs inside; `tokens` it handles give a rate."""
        if tokens:
            self._tokens[name] = tokens
        return self._phases(name)

    @contextmanager
    def rolling(self, name: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """A phase whose trajectories are counted, and their sampled tokens, as they finish."""
        done = tokens = 0

        def count(trajectory: Trajectory) -> None:
            nonlocal done, tokens
            done += 1
            tokens += sum(ledger.model_tokens for ledger in trajectory.ledgers)
            self.view.progress(done, total)

        with self._phases(name):
            yield count
        self._tokens[name] = tokens

    def step(self, step: int, metrics: Metrics) -> None:
        """Close a step: add its times and memory, log, show."""
        metrics = metrics | self._phases.metrics(**self._tokens) | memory_metrics()
        self._tokens.clear()
        self.loggers.log(step, metrics)

    def rolled(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write a training step's trajectories for people to read, where `trainer.rollout_data_dir` says."""
        self._dump(self.trainer.rollout_data_dir, step, trajectories)

    def validated(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """The same for validation."""
        self._dump(self.trainer.validation_data_dir, step, trajectories)

    def _dump(self, folder: str | None, step: int, trajectories: Sequence[Trajectory]) -> None:
        if folder is not None:
            write_trajectories(dump_file(folder, step), step, trajectories, self.decode)
