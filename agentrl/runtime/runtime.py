"""A policy with its engine: rollouts and learner, and whose turn it is.

The training loop is the same where the work runs in this process (`LocalRuntime`) and on Ray (`RayRuntime`).

Invariant: a stop requested while a step samples or computes log-probs ends the step before any state of a checkpoint
changes.
"""

from abc import ABC, abstractmethod
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import Config
from agentrl.core.isolated import IsolatedFunction
from agentrl.core.loop_thread import LoopThread
from agentrl.core.stopping import StopRequest
from agentrl.engines.engine import Engine
from agentrl.engines.launching import Servers
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.teachers import Launch, ServerTeacher, launch_teachers
from agentrl.rollout.async_sampling import AsyncSampling
from agentrl.rollout.pausable_engine import PausableEngine, StoppableEngine
from agentrl.rollout.rollouts import Rollouts
from agentrl.tracking.phases import Phases
from agentrl.tracking.run_tracker import Metrics
from agentrl.tracking.start_times import StartTimes
from agentrl.training import Batch

if TYPE_CHECKING:
    from agentrl.engines.sending import Score
    from agentrl.runtime.ray.learner import RayLearner
    from agentrl.training.learner import Learner


class Runtime(ABC):
    """Gives engine and learner their turns."""

    tokenizer: Any
    """The policy's."""
    rollouts: Rollouts
    """Make trajectories."""
    learner: "Learner | RayLearner"
    """Trains the policy, in this process or on all ranks."""
    apart = False
    """Whether engines have memory of their own, which they keep while the policy trains."""

    isolated: type[Any] = IsolatedFunction
    """Makes functions of other processes of this machine."""

    def __init__(self, start_times: StartTimes) -> None:
        self.start_times = start_times
        """Seconds of the start, by cause."""
        self.phases = Phases()
        """Seconds of a step, by phase."""
        self.stop = StopRequest()
        """Ends what samples."""
        self.runner = LoopThread()
        """Carries out coroutines."""
        self.stack = ExitStack()
        """Closes everything, the event loop last."""
        self.stack.callback(self.runner.close)
        self.async_sampling: AsyncSampling | None = None
        """Trajectories continue while the policy trains (`trainer.max_staleness` > 0)."""
        self.sleeps = False
        """Whether the engine gives its memory back while the policy trains."""
        self._starting: tuple[RemoteEngine, float] | None = None
        """Servers that may not answer yet, and the `time.monotonic()` of their launch."""

    def prepare(self, total_steps: int) -> None:
        """Prepare training for `total_steps` steps in total. The engine may still be starting."""
        with self.start_times.phase("model"):
            self.learner.prepare(total_steps)
        with self.start_times.phase("compile"):
            self.learner.warm_up(self._servers_answer)

    def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with the columns of `Learner.compute_logprobs`. Rewards that are still being computed arrive
        meanwhile. Raises TooManyDrops, and Interrupted where a stop was requested."""
        with self.phases("logprobs"):
            self._halt_engine()
            with self.rollouts.scoring():
                batch = self.learner.compute_logprobs(batch)
        self.stop.check()
        return batch

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use: the engine must not share memory with the trainer."""
        return self.async_sampling is not None and self.apart and self.learner.can_accumulate_early()

    def accumulate_early(self, part: Batch) -> None:
        """Compute the gradients of whole groups; the time is that of the update."""
        with self.phases("update"):
            self.learner.accumulate_early(part)

    def update(self, batch: Batch) -> Metrics:
        """Train on a batch that has advantages; an empty one updates nothing."""
        if not batch.num_sequences:
            return {"rollout/nothing_to_learn": 1.0}
        early = {"perf/early_share": 0.0} if self.can_accumulate_early() else {}
        changing = nullcontext() if self.async_sampling is None else self.async_sampling.updating()
        with self.phases("update", tokens=sum(batch.token_lengths)), changing:
            return early | self.learner.update(batch)

    def publish_weights(self, version: int) -> None:
        """Give the engine the current weights as `version`. The first call waits until the engine has started."""
        with self.phases("sync"):
            self._wait_for_servers()
            if self.sleeps:
                self._free_memory()
            if self.async_sampling is not None:
                self.async_sampling.pause()
            with self.start_times.phase("weights"):
                self.runner.run(self.rollouts.engine.update_weights(version))
            if self.async_sampling is not None:
                self.async_sampling.resume()
            if self.sleeps:
                self.learner.place_parameters()

    def close(self) -> None:
        """Stop engine and tools; safe to call twice."""
        self.stack.close()

    def _halt_engine(self) -> None:
        """Before the policy computes: the engine gives its memory back where it sleeps."""
        if self.sleeps:
            self.runner.run(self.rollouts.engine.sleep())

    @abstractmethod
    def _free_memory(self) -> None:
        """Leave the memory of a GPU to the engine."""

    def _open_rollouts(
        self, config: Config, own: Engine, measured: StoppableEngine | None = None, **options: Any
    ) -> Rollouts:
        """The rollouts of the run; `stack` closes them, with their engine. `measured`: its workers' engine."""
        run, ahead, partial = self.runner.run, config.trainer.max_staleness > 0, config.rollout.partial_rollout
        if ahead or not partial:  # requests of live agents may run at any time
            measured = measured or PausableEngine(own, partial=partial)
        if ahead and measured is not None:
            servers = own if isinstance(own, RemoteEngine) else None
            self.async_sampling = AsyncSampling(self.runner, measured, servers)
            run = self.async_sampling.run
        options |= {"background": self.async_sampling, "stop": self.stop}
        rollouts = Rollouts(config, self.tokenizer, measured or own, run, **options)
        self.stack.callback(rollouts.close)
        return rollouts

    def _engine_over(self, servers: Servers, score: "Score", vocabulary: int) -> RemoteEngine:
        """The engine over servers that may not answer yet."""
        engine = servers.engine(score, vocabulary, self.start_times)
        self.sleeps, self._starting = servers.sleeps, (engine, servers.launched)
        return engine

    def _open_teachers(self, config: Config, kind: str, launch: Launch) -> dict[str, ServerTeacher]:
        """The teachers on servers; `stack` closes them. `kind`: of their device, cpu or cuda."""
        teachers = launch_teachers(config, kind, launch)
        for teacher in teachers.values():
            self.stack.callback(lambda one: self.runner.run(one.client.close()), teacher)
        return teachers

    def _servers_answer(self) -> bool:
        """Whether servers that were starting are ready: the first rollout waits for nothing else."""
        return self._starting is not None and self.runner.run(self._starting[0].answers())

    def _wait_for_servers(self) -> None:
        """Wait until the servers answer, once."""
        if self._starting is None:
            return
        (_, launched), self._starting = self._starting, None
        with self.start_times.phase("wait"):
            self.runner.run(self.rollouts.engine.start())
        self.start_times.served(launched)
