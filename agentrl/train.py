"""The training loop.

Invariants: tokens of step k are drawn by the weights of step k - 1, or of at most `trainer.max_staleness` steps before;
a checkpoint of step k holds all that step k + 1 depends on; a step that is stopped while it samples changes nothing.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from agentrl.config.schema import Config
from agentrl.core.stopping import STOPPING, StopRequest
from agentrl.data.splits import Splits
from agentrl.engines.starting import Start
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.rollout.sampler import Sampler, stream_of
from agentrl.rollout.validation import Validation
from agentrl.runtime import Runtime, TrackedRuntime, open_runtime, read_splits
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.training import ComputeAdvantages, advantages_of, pack_tokens
from agentrl.training.checkpoint.recovery import recovery
from agentrl.training.checkpoint.run_state import Checkpoints
from agentrl.training.update.finished_groups import FinishedGroups
from agentrl.training.update.gap import GapLimit


def train(config: Config, parts: Parts = NO_PARTS, start: Start | None = None) -> None:
    """Run `config` from its start or its last checkpoint. `parts`, `start`: as in `open_runtime`. Raises UserError."""
    with closing(open_runtime(config, parts, start)) as runtime, open_trainer(config, runtime, parts) as trainer:
        for _ in trainer.steps():
            pass


@dataclass
class Trainer:
    """The steps of a run."""

    config: Config
    runtime: TrackedRuntime
    splits: Splits
    take_groups: Sampler
    compute_advantages: ComputeAdvantages
    validate: Validation
    checkpoints: Checkpoints
    tracker: RunTracker
    gap_limit: GapLimit
    start: int  # the step of the checkpoint that the run resumes from, 0 for a new run

    def train_step(self, step: int) -> Metrics:
        """One step of the algorithm: groups of rollouts, a packed batch, its advantages, an update, new weights."""
        groups = self.take_groups(step)
        batch = pack_tokens(groups.kept, groups.version)
        batch = self.runtime.compute_logprobs(batch)
        batch, metrics = self.compute_advantages(batch, groups.kept, groups.baselines, step)
        metrics |= self.runtime.update(batch)
        self.runtime.publish_weights(step)
        return groups.summary() | metrics

    def save(self, step: int, *, last: bool) -> None:
        """Write the checkpoint of `step`, after its trajectories; the `last` one is on the disk when this returns."""
        self.tracker.wait_for_dumps()
        with self.tracker.phase("save"):
            self.checkpoints.save(step, last=last, finished=step == self.splits.total_steps)

    def steps(self) -> Iterator[tuple[int, Metrics]]:
        """Take the steps; yields each with its metrics. Raises TooManyDrops, GapTooLarge, and Interrupted where a stop
        is requested."""
        trainer, last = self.config.trainer, self.splits.total_steps
        with self.runtime.stop, recovery(self.checkpoints, self.take_groups.stream, self.save, self.start) as recover:
            if trainer.val_only or (self.start == 0 and trainer.val_before_train):
                self.tracker.step(self.start, self.validate(self.start))
                self.runtime.stop.check()
            for step in range(self.start + 1, 0 if trainer.val_only else last + 1):
                with recover(step):
                    metrics = self.train_step(step)
                if step == last or (trainer.test_freq > 0 and step % trainer.test_freq == 0):
                    metrics |= self.validate(step)
                # Logged before it is saved: a run killed in between repeats the step and its line, and loses neither.
                metrics = self.tracker.step(step, metrics)
                stopping = self.runtime.stop.requested  # read once: the next step saves for a later request
                wrong = self.gap_limit.exceeded(step, metrics)
                ends = step == last or stopping or wrong is not None
                if ends or self.checkpoints.due(step):
                    self.save(step, last=ends)
                if wrong is not None:
                    raise wrong
                if stopping and step < last:
                    self.runtime.stop.check()
                yield step, metrics


@contextmanager
def open_trainer(config: Config, runtime: Runtime, parts: Parts = NO_PARTS) -> Iterator[Trainer]:
    """A trainer at the step that the run resumes from, the engine with that step's weights. Raises UserError."""
    splits = read_splits(config, runtime, parts)
    runtime.prepare(splits.total_steps)
    advantages = advantages_of(config)
    stream = stream_of(config, splits)
    checkpoints = Checkpoints(config.trainer, runtime, {"rows": stream, "kl": advantages.kl})
    runtime.publish_weights(start := checkpoints.resume())
    with RunTracker(config, splits.total_steps, start, runtime.decode) as tracker:
        advantages.on_advantages = tracker.record_advantages
        tracked = TrackedRuntime(runtime, tracker, StopRequest(lambda: tracker.view.note(STOPPING)))
        sampler = Sampler(config, tracked, stream, tracker, look=FinishedGroups(config, tracked, advantages))
        validate = Validation(tracked, tracker, splits.validation, config.rollout.val_kwargs.n)
        limit = GapLimit(config)
        yield Trainer(config, tracked, splits, sampler, advantages, validate, checkpoints, tracker, limit, start)
