"""Records a run: its folder, metrics, live view and dumps.

Invariants: nothing in here changes what is trained; a run with every logger off takes the same steps. Trajectories are
dumped as soon as their advantages are known, and without them if the step ends before; they are on the disk when
`wait_for_dumps` returns, or the run ends, however it does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from agentrl.config import to_yaml
from agentrl.config.schema import Config
from agentrl.core.errors import plural
from agentrl.core.isolated import IsolatedFunction
from agentrl.tracking.dumps.jsonl import dump_file
from agentrl.tracking.dumps.records import Values
from agentrl.tracking.dumps.writer import DumpWriter
from agentrl.tracking.generations import generations
from agentrl.tracking.live import LiveView
from agentrl.tracking.loggers import ADDS, open_loggers
from agentrl.tracking.phases import Phases, memory_metrics, sampling_ahead
from agentrl.tracking.resume_notes import resuming_from
from agentrl.tracking.services.service import RunInfo
from agentrl.tracking.start_times import start_line
from agentrl.tracking.status import RunStatus
from agentrl.tracking.summary import closing
from agentrl.trajectory.trajectory import Trajectory

Metrics = dict[str, float]

NEEDS_TURNS = ("rollout/turns_mean", "tools/calls")
"""Metrics that say nothing of a single turn without tools."""


class RunTracker:
    """Context manager around the steps of a run."""

    def __init__(
        self,
        config: Config,
        total_steps: int,
        resume_step: int,
        decode: Callable[[Sequence[int]], str],
        phases: Phases | None = None,
        tokenizer: Any = None,
        *,
        record: str = "",
        isolated: type[Any] = IsolatedFunction,
    ) -> None:
        """`resume_step` is the step of the checkpoint that the run resumes from, 0 for a new run. `phases`: the
        runtime's. With the `tokenizer` of `decode` another process can write large dumps. `record`: as in
        `open_loggers`; `isolated`: as in `DumpWriter`."""
        trainer = config.trainer
        self.trainer = trainer
        self.decode = decode
        self._begun, self._total = resume_step, total_steps
        self.run_dir = Path(trainer.default_local_dir)
        self._status = RunStatus(self.run_dir, total_steps, resume_step)
        absent = () if config.rollout.multi_turn.enable else NEEDS_TURNS
        names = trainer.project_name, trainer.experiment_name
        self.view = LiveView(total_steps, " / ".join(names), trainer.live, absent=absent)
        since = ADDS if trainer.val_only else resume_step
        self.loggers = open_loggers(
            trainer.logger, RunInfo(*names, self.run_dir, to_yaml(config), since, self.view), record
        )
        self.phase = phases or Phases()
        """Times the body of a `with`."""
        self.phase.watch(self.view.phase)
        self.records: list[Metrics] = []
        """Logged metrics: one dict with `step` per line."""
        self.sampled: list[Trajectory] = []
        """Trajectories of the last training step."""
        self.validated: list[Trajectory] = []
        """Trajectories of the last validation."""
        self._unwritten_rollouts: tuple[int, Sequence[Trajectory]] | None = None
        self._dumps = DumpWriter(decode, tokenizer, isolated)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._background: list[Future[None]] = []
        self._start: Metrics = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.loggers.close)
        self._stack.enter_context(self.view)
        self._stack.callback(self._close_dumps)
        self._stack.callback(self._write_rollouts)
        if not self.trainer.val_only:  # a validation leaves the record of the run that it validates
            self._stack.enter_context(self._status)
            if self._begun:
                self.view.note(resuming_from(self._begun, self._total))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)
        if raised[1] is None:
            for piece in closing(self.trainer, self.decode):
                self.view.show(piece)

    def record_start(self, metrics: Metrics) -> None:
        """Show the `start/` metrics, and log them with the first training step."""
        self._start = metrics
        self.view.note(start_line(metrics))

    @contextmanager
    def rollout_phase(self, name: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """A phase that counts finished trajectories and their sampled tokens."""
        done = tokens = 0

        def count(trajectory: Trajectory) -> None:
            nonlocal done, tokens
            done += 1
            tokens += sum(ledger.model_tokens for ledger in trajectory.outlines)
            self.view.progress(done, total)

        with self.phase(name):
            yield count
        self.phase.count(name, tokens)  # a step may sample several batches

    def step(self, step: int, metrics: Metrics) -> Metrics:
        """Close a step: add times and memory to its metrics, log and show them; returns all metrics."""
        self._write_rollouts()
        metrics = metrics | self.phase.metrics() | memory_metrics(metrics)
        if self.trainer.max_staleness:
            metrics |= sampling_ahead(metrics)
        if self._dumps.failures:
            metrics["perf/dumps_failed"] = float(len(self._dumps.failures))
        if step > self._begun:
            metrics, self._start = metrics | self._start, {}
        self.loggers.log(step, metrics)
        self.records.append({"step": step} | metrics)
        self._status.step = step
        return metrics

    def record_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Remember a training step's trajectories, for `trainer.rollout_data_dir`."""
        self._unwritten_rollouts = step, trajectories
        self.sampled = list(trajectories)

    def record_advantages(self, advantages: Callable[[], Mapping[str, Sequence[Values]]]) -> None:
        """Give the step's trajectories their advantages (by key, an entry a ledger), and write them."""
        found = advantages()
        for trajectory in self.sampled:
            trajectory.advantages = list(found.get(trajectory.key, ()))
        self._write_rollouts()

    def in_background(self, work: Callable[[], None]) -> None:
        """Have `work()` done in a thread: trajectories are written after it, and `catch_up` waits for it."""
        self._background.append(self._thread.submit(work))

    def wait_for_background(self) -> None:
        """Wait for the work of `in_background`, and raise its error."""
        while self._background:
            self._background.pop().result()

    def wait_for_dumps(self) -> None:
        """Wait until all trajectories are on disk, before a checkpoint marks the step as done."""
        with self.phase("dump"):
            self._dumps.wait()

    def record_validation(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write a validation's trajectories, and send a few to loggers with tables."""
        self.validated = list(trajectories)
        shown = [*generations(step, trajectories, self.trainer.log_val_generations, self.decode)]
        if shown:
            self.loggers.generations(step, shown)
        self.loggers.trajectories(step, trajectories)
        self._dump(self.trainer.validation_data_dir, step, trajectories)

    def _write_rollouts(self) -> None:
        if self._unwritten_rollouts is not None:
            self.loggers.trajectories(*self._unwritten_rollouts)
            self._dump(self.trainer.rollout_data_dir, *self._unwritten_rollouts)
            self._unwritten_rollouts = None

    def _dump(self, folder: str | None, step: int, trajectories: Sequence[Trajectory]) -> None:
        if folder is not None:
            with self.phase("dump"):
                self._dumps.write(dump_file(folder, step), step, trajectories, tuple(self._background))

    def _close_dumps(self) -> None:
        self._dumps.close()
        self._thread.shutdown()
        if failures := self._dumps.failures:
            self.view.note(f"{plural(len(failures), 'dump')} could not be written; the first: {failures[0]}")
