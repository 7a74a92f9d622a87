"""The algorithm: sample, score, weigh, update, and give the engine the new weights.

Invariants: step k samples with the weights that step k - 1 left; a step with nothing to learn from leaves the weights
alone, and its metrics say so; a step that lost too many trajectories to infrastructure stops the run, with a checkpoint
of the step before, and so does a stop request while a step samples; a checkpoint of step k holds all that step k + 1
depends on.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from agentrl.config.checks.fit import cut_distribution
from agentrl.config.schema import Config
from agentrl.rollout.drops import TooManyDrops, check_drops
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.rollout.trajectory import Trajectory
from agentrl.runtime import Checkpoints, Feed, Journal, Metrics, Runtime, Sampler, load_feed, open_runtime
from agentrl.stopping import STOPPING, Interrupted, StopRequest
from agentrl.tracking import rollout_metrics, validation_metrics
from agentrl.training import Weighing, pack_tokens, rewarded
from agentrl.training.resuming import how_to_go_on


def train(config: Config, parts: Parts = NO_PARTS) -> None:
    """Run the experiment that `config` describes, from its start or its last checkpoint.

    `parts`: objects in place of files. Raises UserError.
    """
    with opened(config, parts) as training:
        training.run()


@contextmanager
def opened(config: Config, parts: Parts = NO_PARTS) -> Iterator["Training"]:
    """A run that is ready for its first step; its engine, tools and files are closed at the end. Raises UserError."""
    with closing(open_runtime(config, parts)) as runtime:
        feed = load_feed(config, runtime, parts)
        runtime.prepare(feed.total_steps)
        corrects = cut_distribution(config.rollout) is None
        weigh = Weighing(config.algorithm, seed=config.trainer.seed, corrects=corrects)
        checkpoints = Checkpoints(config.trainer, runtime, {"rows": feed.train, "kl": weigh.kl})
        start = checkpoints.resume()
        runtime.sync(start)
        with Journal(config, feed.total_steps, start, runtime.decode) as journal:
            sample = Sampler(config, runtime, feed.train, journal)
            stop = StopRequest(lambda: journal.view.note(STOPPING))
            yield Training(config, runtime, feed, sample, weigh, checkpoints, journal, stop, start)


@dataclass(frozen=True)
class Step:
    """One step of a run, done."""

    number: int
    """From 1; a run that resumes goes on with the number after its checkpoint's."""
    metrics: Metrics
    """By name, as they were logged."""
    trajectories: list[Trajectory]
    """All that were sampled, group by group."""


@dataclass
class Training:
    """The steps of a run."""

    config: Config
    runtime: Runtime
    feed: Feed
    sample: Sampler
    weigh: Weighing
    checkpoints: Checkpoints
    journal: Journal
    stop: StopRequest
    start: int = 0
    """The step of the checkpoint that the run goes on from; 0: a new run."""
    taken: int = 0
    """The last step that the weights have learned from."""
    saved: int = 0
    """The last step that this run has saved."""

    def __post_init__(self) -> None:
        self.taken = self.saved = self.start
        self.rolled: list[Trajectory] = []
        """Trajectories of the last step."""

    def run(self) -> None:
        """All steps. Raises what `steps` does."""
        with self.stop:  # no gap between the steps for a signal
            for _ in self.steps():
                pass

    def steps(self) -> Iterator[Step]:
        """The steps that are left, with validation and checkpoints where they are due. Each comes when it is done.

        Who leaves the loop early finds the last step saved. Raises TooManyDrops, and Interrupted where the run is
        asked to stop, which counts while a step runs.
        """
        trainer, last = self.config.trainer, self.feed.total_steps
        with self._interruptible():
            if not self.journal.records and (trainer.val_only or (self.taken == 0 and trainer.val_before_train)):
                self.journal.step(self.taken, self.validate(self.taken))
        for step in range(self.taken + 1, 0 if trainer.val_only else last + 1):
            with self._interruptible():
                metrics = self._take(step, last)
            try:
                yield Step(step, metrics, self.rolled)
            except GeneratorExit:
                self.save()
                raise

    def save(self) -> None:
        """Write the checkpoint of the last step, unless it is there."""
        if self.taken > self.saved:
            self._save(self.taken, last=True)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Signals ask for a stop while the body runs. Raises Interrupted, which says how to go on."""
        try:
            with self.stop:
                yield
        except KeyboardInterrupt:
            saved = self.checkpoints.newest()
            raise Interrupted(how_to_go_on(self.start, self.taken, saved, self.config.trainer.resume_mode)) from None

    def _take(self, step: int, last: int) -> Metrics:
        trainer = self.config.trainer
        with self._saved_before(step):
            metrics = self.step(step)
        self.taken = step
        if step == last or (trainer.test_freq > 0 and step % trainer.test_freq == 0):
            metrics |= self._validate_unless_stopped(step)
        # Logged before it is saved: a run killed in between repeats the step and its line, and loses neither.
        metrics = self.journal.step(step, metrics)
        stopping = self.stop.requested  # looked at once: the next step saves for a request that comes later
        if step == last or stopping or self.checkpoints.due(step):
            self._save(step, last=step == last or stopping)
        if stopping and step < last:
            self.stop.check()
        return metrics

    def step(self, step: int) -> Metrics:
        """One round of the algorithm; returns its metrics."""
        reward = self.config.reward
        sample = self.sample(step)
        self.journal.rolled(step, sample.rolled)
        self.rolled = sample.rolled
        with self.journal.phase("logprobs"):
            batch = self.runtime.annotate(pack_tokens(sample.kept))
        check_drops(sample.rolled, self.config.rollout.max_infra_drop_share)  # scores may have come only now
        tool, user = reward.tool_turn_weight, reward.interaction_turn_weight
        batch = rewarded(batch, sample.kept, tool_turn_weight=tool, interaction_turn_weight=user)
        metrics = rollout_metrics(sample.rolled) | sample.metrics
        self.stop.check()  # from here on the step changes what a checkpoint holds
        if batch.num_sequences:
            batch.baselines = sample.baselines(batch)
            metrics |= self.weigh(batch)
            self.journal.weighed(sample.kept, batch)
            batch = self.weigh.filtered(batch, step)
            with self.journal.phase("update", tokens=batch.num_tokens):
                metrics |= self.runtime.update(batch)
        else:
            metrics["rollout/nothing_to_learn"] = 1.0
        with self.journal.phase("sync"):
            self.runtime.sync(step)
        return metrics

    @contextmanager
    def _saved_before(self, step: int) -> Iterator[None]:
        """Where `step` loses too many trajectories, or has to stop before it learns, save the step before, as if this
        one had drawn no rows."""
        rows = self.feed.train.state_dict()
        try:
            yield
        except (TooManyDrops, Interrupted) as early:
            self.feed.train.load_state_dict(rows)
            if step > 1 and not self.checkpoints.has(step - 1):
                self._save(step - 1, last=True)
            if isinstance(early, Interrupted):
                raise
            again = f"then start the run again, with trainer.resume_mode=auto: it goes on after step {step - 1}"
            raise TooManyDrops(f"step {step}: {early}, {again}") from early

    def _validate_unless_stopped(self, step: int) -> Metrics:
        try:
            return self.validate(step)
        except Interrupted:
            self.journal.view.note(f"The validation of step {step} is left out: trainer.val_only=true repeats it.")
            return {}

    def _save(self, step: int, *, last: bool) -> None:
        self.journal.written()  # a checkpoint vouches for the trajectories that it was made from
        with self.journal.phase("save"):
            self.checkpoints.save(step, last=last)
        self.saved = step

    def validate(self, step: int) -> Metrics:
        """`val/` metrics of the current weights; none without validation rows."""
        total = sum(map(len, self.feed.validation)) * self.config.rollout.val_kwargs.n
        with self.journal.rolling("validate", total) as on_done:
            trajectories = [t for rows in self.feed.validation for t in self.runtime.validate(rows, step, on_done)]
        self.journal.validated(step, trajectories)
        return validation_metrics(trajectories) if trajectories else {}
