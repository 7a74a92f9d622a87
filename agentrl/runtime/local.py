"""Runs everything in one process, except the servers of an SGLang or vLLM engine.

Invariant: engine and learner take turns; neither runs while the other does, so both may use every core and the GPU.
With `trainer.max_staleness` > 0, a server that keeps its memory continues while the policy trains. The hf engine
samples from the parameters that the learner trains; servers get them by `publish_weights` before anything is sampled.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from agentrl.config.schema import Config
from agentrl.engines.engine import Engine
from agentrl.engines.launching import Servers, engine_in_process
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.starting import Start, start_servers
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.stream import AdmittedBatch, Pending
from agentrl.rollout.workers import OnDone
from agentrl.runtime.loop_runner import LoopRunner
from agentrl.runtime.loop_thread import LoopThread
from agentrl.runtime.sampling_ahead import SamplingAhead
from agentrl.runtime.shared_memory import SharedMemory
from agentrl.tracking import Waiting
from agentrl.training import Batch
from agentrl.training.learner import Learner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory


class LocalRuntime:
    """Builds learner and engine. Raises UserError if they do not fit."""

    def __init__(self, config: Config, parts: Parts = NO_PARTS, start: Start | None = None) -> None:
        """`start`: the servers that are starting already; None: they are launched now."""
        start = start or start_servers(config)  # first: a server starts while all else is made ready
        servers, self.kernels, self.start_times = start.take(), start.kernels, start.times
        self.start_times.imported()
        self.sleeps = servers is not None and servers.sleeps
        self.memory = SharedMemory()
        self._starting: tuple[RemoteEngine, float] | None = None
        ahead = config.trainer.max_staleness > 0
        self.runner: LoopRunner | LoopThread = LoopThread() if ahead else LoopRunner()
        self.ahead: SamplingAhead | None = None
        with ExitStack() as undo:
            undo.callback(self.runner.close)
            if servers is not None:
                undo.callback(lambda: self.runner.run(servers.close()))
            with self.start_times.phase("model"):
                self.learner = Learner(config)
            self.tokenizer, self.device = self.learner.tokenizer, self.learner.device
            self.engine = self._engine(config, servers)
            undo.callback(lambda: self.runner.run(self.engine.close()))
            if isinstance(self.runner, LoopThread):
                remote = self._starting[0] if self._starting else None
                self.ahead = SamplingAhead(self.runner, self.engine, remote, partial=config.rollout.partial_rollout)
                self.engine = self.ahead.engine
                undo.callback(self.ahead.close)
            self.rollouts = Rollouts(config, self.tokenizer, self.engine, self.runner.run, parts=parts)
            undo.pop_all()

    def prepare(self, total_steps: int) -> None:
        with self.kernels.assumed():
            self._prepare(total_steps)
        with self.start_times.phase("compile"):
            self.kernels.wait()
            kept = self.learner.keeps_kernel()
        if not kept:
            self._prepare(total_steps)

    def _prepare(self, total_steps: int) -> None:
        with self.start_times.phase("model"):
            self.learner.prepare(total_steps)
        with self.start_times.phase("compile"):
            self.learner.warm_up(self._servers_answer)

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        return self.rollouts.train(rows, step, on_done, scored=scored)

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        self.rollouts.compare(trajectories)

    def begin(self, batch: AdmittedBatch) -> Pending:
        assert self.ahead is not None
        return self.ahead.begin(self.rollouts, batch)

    @property
    def containers(self) -> Mapping[str, int]:
        return self.rollouts.tasks.phases

    def activity(self) -> dict[str, float]:
        return {} if self.ahead is None else self.ahead.activity()

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        return self.rollouts.greedy(rows, step, on_done)

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        if self.ahead is not None:
            self.ahead.resume()
        return self.rollouts.validate(rows, step, on_done)

    def compute_logprobs(self, batch: Batch) -> Batch:
        if self.sleeps:
            with self.memory.freed_by_engine():
                self.runner.run(self.engine.sleep())
        elif self.ahead is not None:
            self.ahead.pause()
        with self.rollouts.scoring():
            return self.learner.compute_logprobs(batch)

    def can_accumulate_early(self) -> bool:
        beside = self.ahead is not None and not self.ahead.shares_parameters and not self.sleeps
        return beside and self.learner.can_accumulate_early()

    def accumulate_early(self, part: Batch) -> None:
        self.learner.accumulate_early(part)

    def update(self, batch: Batch) -> dict[str, float]:
        with nullcontext() if self.ahead is None else self.ahead.updating():
            return self.learner.update(batch)

    def publish_weights(self, version: int) -> None:
        self._wait_for_servers()
        if self.sleeps:
            self.memory.leave_to_engine()
        with self.start_times.phase("weights"):
            self.runner.run(self.engine.update_weights(version))
        if self.ahead is not None:
            self.ahead.resume()
        if self.sleeps:
            self.learner.offload_parameters()

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        self.learner.save(folder, step, state, last, model_only)

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        return self.learner.load(path)

    def prompt_length(self, row: Row) -> int:
        return self.rollouts.prompt_length(row)

    def decode(self, ids: Sequence[int]) -> str:
        return self.rollouts.decode(ids)

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
        self.rollouts.close()
        self.runner.close()

    def _engine(self, config: Config, servers: Servers | None) -> Engine:
        """The engine, ready to sample; or one over servers that are still starting."""
        if servers is None:
            engine = engine_in_process(config, self.learner.model.module)
            self.runner.run(engine.start())
            return engine
        remote = servers.engine(self.learner.model, self.learner.score)
        if remote.check is not None:
            remote.check = self.start_times.timed("probe", remote.check)
        self._starting = remote, servers.launched
        return remote

    def _servers_answer(self) -> bool:
        """Whether servers that were starting are ready: the first rollout waits for nothing else."""
        return self._starting is not None and self.runner.run(self._starting[0].answers())

    def _wait_for_servers(self) -> None:
        """Wait until the servers answer, once."""
        if self._starting is None:
            return
        (remote, launched), self._starting = self._starting, None
        with self.start_times.phase("wait"), Waiting(f"{remote.backend.name} starts") as remote.progress:
            self.runner.run(remote.start())
        self.start_times.served(launched)
