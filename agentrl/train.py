"""The training loop.

Invariants: tokens of step k are drawn by the weights of step k - 1, or of at most `trainer.max_staleness` steps before;
a checkpoint of step k holds all that step k + 1 depends on; a step that is stopped while it samples changes nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.core.stopping import STOPPING
from agentrl.data.splits import Splits
from agentrl.rollout.sampler import Sampler, Validation, stream_of
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.runtime.opening import open_runtime, read_splits
from agentrl.runtime.runtime import Runtime
from agentrl.runtime.starting import Start
from agentrl.tracking.callbacks import Callbacks, RunStart, Step
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.training import ComputeAdvantages
from agentrl.training.checkpoint.changes import check_steps_left
from agentrl.training.checkpoint.contents import contents_of, record_text
from agentrl.training.checkpoint.recovery import recovering
from agentrl.training.checkpoint.run_state import Checkpoints
from agentrl.training.update.advantages import advantages_of, kl_of
from agentrl.training.update.finished_groups import FinishedGroups
from agentrl.training.update.gap import GapLimit


def train(config: Config, objects: UserObjects = NO_OBJECTS, start: Start | None = None) -> None:
    """Run `config` from its start or its last checkpoint; `objects`, `start`: see `open_runtime`. Raises UserError."""
    with closing(open_runtime(config, objects, start)) as runtime, open_trainer(config, runtime, objects) as trainer:
        for _ in trainer.steps():
            pass


@dataclass
class Trainer:
    """The steps of a run."""

    config: Config
    runtime: Runtime
    splits: Splits
    take_groups: Sampler
    compute_advantages: ComputeAdvantages
    validate: Validation
    checkpoints: Checkpoints
    tracker: RunTracker
    callbacks: Callbacks
    gap_limit: GapLimit
    start: int  # the step of the checkpoint that the run resumes from, 0 for a new run
    updated: int = 0  # the last step whose update has begun

    def train_step(self, step: int) -> Metrics:
        """One step of the algorithm: groups of rollouts, a packed batch, its advantages, an update, new weights."""
        groups = self.take_groups(step)
        batch = self.runtime.learner.pack(groups.trained, groups.version)
        batch = self.runtime.compute_logprobs(batch)
        batch, metrics = self.compute_advantages(batch, groups.trained, groups.baselines, step)
        self.updated = step
        metrics |= self.runtime.update(batch)
        self.runtime.publish_weights(step)
        self.take_groups.stream.record(step, groups.sampled)
        return groups.summary() | metrics

    def catching_stops(self) -> AbstractContextManager[object]:
        """Within the body Ctrl-C and SIGTERM ask for a stop."""
        return self.runtime.stop.catching(lambda: self.tracker.view.note(STOPPING))

    def save(self, step: int, *, last: bool) -> None:
        """Write the checkpoint of `step`, after its trajectories; the `last` one is on the disk when this returns."""
        self.tracker.wait_for_dumps()
        with self.tracker.phase("save"):
            waits = self.callbacks.waits_for_checkpoints
            self.checkpoints.save(step, last=last or waits, finished=step == self.splits.total_steps)
        if waits:
            self.callbacks.checkpoint(step, self.checkpoints.folder(step))

    def run_validation(self, step: int, *, every: bool = True) -> Metrics:
        """`validate`, and then the callbacks, if anything was measured."""
        metrics = self.validate(step, every=every)
        if metrics or every:
            self.callbacks.validation(Step(step, metrics, self.tracker.validated))
        return metrics

    def undo(self) -> bool:
        """Return the rows of a step that ended early; false where its update has begun."""
        untouched = self.updated <= self.checkpoints.taken
        if untouched:
            self.take_groups.stream.undo()
        return untouched

    @contextmanager
    def saved_on_error(self, step: int, metrics: Metrics) -> Iterator[None]:
        """Log and save the step where the body, its validation, raises a UserError."""
        try:
            yield
        except UserError:
            self.tracker.step(step, metrics)
            self.save(step, last=True)
            raise

    def steps(self) -> Iterator[tuple[int, Metrics]]:
        """Take the steps; yields each with its metrics. Raises TooManyDrops, GapTooLarge, and Interrupted where a stop
        is requested."""
        trainer, last = self.config.trainer, self.splits.total_steps
        checkpoints, save = self.checkpoints, partial(self.save, last=True)
        with self.catching_stops(), checkpoints.resumable():
            if trainer.val_only or (self.start == 0 and trainer.val_before_train):
                self.tracker.step(self.start, self.run_validation(self.start))
                self.callbacks.check()
                self.runtime.stop.check()
            for step in range(self.start + 1, 0 if trainer.val_only else last + 1):
                with recovering(step, checkpoints.has, save, self.undo):
                    metrics = self.train_step(step)
                checkpoints.taken = step
                with self.saved_on_error(step, metrics):
                    metrics |= self.run_validation(step, every=step == last)
                # Logged before it is saved: a run killed in between repeats the step and its line, and loses neither.
                metrics = self.tracker.step(step, metrics)
                self.callbacks.step(Step(step, metrics, self.tracker.sampled))
                stopping = self.runtime.stop.requested  # read once: the next step saves for a later request
                wrong = self.gap_limit.exceeded(step, metrics) or self.callbacks.failure
                finished = step == last or self.callbacks.finished
                ends = finished or stopping or wrong is not None
                if ends or checkpoints.due(step):
                    self.save(step, last=ends)
                if wrong is not None:
                    raise wrong
                self.callbacks.check()  # a checkpoint has called them, too
                if stopping and not finished:
                    self.runtime.stop.check()
                yield step, metrics
                if finished:
                    return


@contextmanager
def open_trainer(config: Config, runtime: Runtime, objects: UserObjects = NO_OBJECTS) -> Iterator[Trainer]:
    """A trainer at the step that the run resumes from, the engine with that step's weights. Raises UserError."""
    contents, splits = contents_of(config, objects), read_splits(config, runtime, objects)
    runtime.prepare(splits.total_steps)
    stream, kl = stream_of(config, splits), kl_of(config.algorithm)
    checkpoints = Checkpoints(config.trainer, runtime.learner, {"rows": stream, "kl": kl})
    check = partial(check_steps_left, config, contents, splits.total_steps)
    runtime.publish_weights(start := checkpoints.resume(check))
    rollouts, phases = runtime.rollouts, runtime.phases
    total, tokenizer = splits.total_steps, runtime.tokenizer
    record = record_text(contents, total)
    makes = runtime.isolated
    with RunTracker(
        config, total, start, rollouts.env.chat.decode, phases, tokenizer, record=record, isolated=makes
    ) as tracker:
        tracker.view.watch(rollouts.tasks.phases)
        tracker.record_start(runtime.start_times.metrics())
        advantages = advantages_of(config, kl, tracker.record_advantages)
        finished_groups = FinishedGroups(config, runtime, advantages_of(config, kl))
        sampler = Sampler(config, rollouts, stream, tracker, on_finished_groups=finished_groups)
        validate = Validation(rollouts, tracker, splits.validation, config.trainer.test_freq)
        limit = GapLimit(config)
        run = RunStart(tracker.run_dir, config, start, splits.total_steps)
        with Callbacks(config.trainer.callbacks, run) as calls:
            yield Trainer(
                config, runtime, splits, sampler, advantages, validate, checkpoints, tracker, calls, limit, start
            )
