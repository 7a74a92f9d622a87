"""Takes the groups of trajectories that a step trains on, and samples the held-out rows.

Invariants: the rows of a step come from the stream alone, so a run that resumes draws the same ones. With
`trainer.max_staleness=0`, rows are sampled when their step begins, and groups that a step does not train on are not
used later; otherwise rows are sampled ahead, and groups that a step has no room for are used in the next one.
"""

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from numbers import Real

from agentrl.algorithms.filters import keeps
from agentrl.config.derived import group_size, has_baselines
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.core.grouping import grouped
from agentrl.core.numbers import limit_of
from agentrl.core.stopping import Interrupted
from agentrl.data.splits import Splits, ValRows
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.stream import AdmittedBatch, RolloutFuture, Stream
from agentrl.rollout.window import StepTiming, staleness_metrics
from agentrl.tracking.estimates import estimates
from agentrl.tracking.metrics import rollout_metrics, validation_metrics
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.training.batches.packing import total_rewards
from agentrl.trajectory.drops import check_drops, while_sampling
from agentrl.trajectory.trajectory import Trajectory

# What verl calls the score itself, in its several versions.
SCORE = ("score", "seq_reward", "seq_final_reward")

ScoreFn = Callable[[Trajectory], Sequence[float]]
OnFinishedGroups = Callable[[int, Mapping[int, Trajectory], int], object]
"""Gets a step, the trajectories of its batch that are finished, by index, group by group, and its number of groups."""


@dataclass
class Groups:
    """The trajectories of a step, group by group."""

    sampled: list[Trajectory] = field(default_factory=list)
    """All of them."""
    trained: list[Trajectory] = field(default_factory=list)
    """The trajectories that are trained on."""
    metrics: Metrics = field(default_factory=dict)
    greedy: dict[str, Trajectory] = field(default_factory=dict)
    """Row uid -> the prompt's greedy answer, where the estimator asks for it."""
    baselines: dict[str, float] | None = None
    """Row uid -> the score of that answer; None: the estimator has no baseline."""
    version: int | None = None
    """The version of the policy that is trained, where tokens may be of older ones."""
    compared: Callable[[], object] = lambda: None
    """Waits until all have been compared with the template."""

    def summary(self) -> Metrics:
        """Metrics of all trajectories, and those of the sampler."""
        self.compared()
        return rollout_metrics(self.sampled) | self.metrics


class Sampler:
    """Draws rows and collects their rollouts."""

    def __init__(
        self,
        config: Config,
        rollouts: Rollouts,
        stream: Stream,
        tracker: RunTracker,
        clock: Callable[[], float] = time.perf_counter,
        on_finished_groups: OnFinishedGroups = lambda step, finished, groups: None,
    ) -> None:
        """`clock`: seconds; the waits for groups are measured with it. `on_finished_groups` is called several times a
        second while the trainer waits for the groups of a step."""
        self.config, self.rollouts, self.stream, self.tracker = config, rollouts, stream, tracker
        self.begin = rollouts.begin if config.trainer.max_staleness > 0 else None
        """Begins a batch ahead of its step; None: a step samples its own."""
        self.score: ScoreFn = partial(total_rewards, turn_weights=config.reward.turn_weights)
        self.clock, self.on_finished_groups = clock, on_finished_groups
        self._waited, self._last, self._spare = 0.0, math.nan, False

    def __call__(self, step: int) -> Groups:
        """The trajectories of a step: of one batch of prompts, or of as many as `filter_groups` asks for.

        Raises TooManyDrops and SamplingStopped.
        """
        with while_sampling():
            groups = Groups(compared=self.tracker.wait_for_background)
            if self.config.algorithm.filter_groups.enable:
                self._sample_until_enough_differ(step, groups)
            else:
                batch = self.stream.take(step, self.begin)
                groups.sampled = groups.trained = self._sample(batch, groups, partial(self._while_waiting, step, batch))
                self._check(step, groups.sampled)
            if has_baselines(self.config):
                self._add_baselines(step, groups)
            groups.metrics |= self.rollouts.activity()
            if self.begin is not None:
                groups.version = step - 1
                groups.metrics |= staleness_metrics(groups.trained, groups.version)
                self._fit_window(groups.metrics)
            return groups

    def _fit_window(self, metrics: Metrics) -> None:
        """Sample as far ahead as the waits ask for; the first step has no time before it."""
        now, requests = self.clock(), metrics.get("perf/running_requests")
        if now > self._last and requests is not None:
            self.stream.window.record(StepTiming(now - self._last, self._waited, requests, self._spare))
        self._waited, self._last = 0.0, now

    def _add_baselines(self, step: int, groups: Groups) -> None:
        """The scores of greedy answers; rows that were sampled ahead have them already."""
        rows = {t.row.uid: t.row for t in groups.trained}
        if self.begin is None:
            with self.tracker.rollout_phase("baseline", len(rows)) as on_done:
                greedy = self.rollouts.greedy(list(rows.values()), step, on_done)
            groups.greedy = {t.row.uid: t for t in greedy}
        answers = [answer for uid, answer in groups.greedy.items() if uid in rows]
        check_drops(answers, self.config.rollout.max_infra_drop_share)  # without a baseline, a prompt is not learned
        groups.baselines = {t.row.uid: self.score(t)[0] for t in answers if t.trainable}
        groups.metrics["rollout/baseline_mean"] = sum(groups.baselines.values()) / max(len(groups.baselines), 1)

    def _sample_until_enough_differ(self, step: int, groups: Groups) -> None:
        """Batch after batch, until enough prompts have answers that differ (DAPO, arXiv 2503.14476).

        Across an epoch's end the loader gives rows again that this step has had. Where rows are sampled when the step
        begins, those are left out; where they were sampled ahead, both groups count, as one larger group.
        """
        size, filter_groups = self.config.data.train_batch_size, self.config.algorithm.filter_groups
        differing, drawn, had = list[list[Trajectory]](), 0, set[str]()
        most = limit_of(filter_groups.max_num_gen_batches) or self.stream.loader.steps_per_epoch
        while len(differing) < size and drawn < most:
            batch = self.stream.take(step, self.begin, len(differing))
            trajectories = self._sample(batch, groups, partial(self._show_progress, batch), had)
            had |= {row.uid for row in batch.rows}
            differing += kept_groups(trajectories, filter_groups.metric, self.score, filter_groups.keep).values()
            groups.sampled += trajectories
            self._check(step, groups.sampled)  # other prompts must not quietly take the place of those that are lost
            drawn += not batch.returned
        groups.trained = [trajectory for group in differing[:size] for trajectory in group]
        if self.begin is not None:
            self._return(step, groups, differing[size:])
        kept = float(min(len(differing), size))
        groups.metrics |= {"rollout/gen_batches": float(drawn), "rollout/kept_groups": kept}

    def _return(self, step: int, groups: Groups, later: Sequence[list[Trajectory]]) -> None:
        """Leave whole groups, with their greedy answers, to the next step, which will count them."""
        answers = {uid: [answer] for uid, answer in groups.greedy.items()}
        self.stream.give_back([[*group, *answers.get(group[0].row.uid, [])] for group in later])
        keys = {t.key for group in later for t in group}
        groups.sampled = [t for t in groups.sampled if t.key not in keys]
        self.tracker.record_rollouts(step, groups.sampled)

    def _sample(
        self, batch: AdmittedBatch, groups: Groups, poll: Callable[[], object], had: Container[str] = ()
    ) -> list[Trajectory]:
        """The trajectories of a batch, without the rows that the step has `had`; `poll` is called during a wait."""
        if self.begin is not None:
            return self._wait(batch, groups, poll)
        rows = [row for row in batch.rows if row.uid not in had]
        if not rows:
            return []
        now = self.config.algorithm.filter_groups.enable or bool(self.rollouts.teachers)  # their columns are packed
        scored = now or not self.config.reward.launch_reward_fn_async
        with self.tracker.rollout_phase("rollout", len(rows) * self.config.rollout.n) as on_done:
            made = self.rollouts.sample(rows, batch.number, on_done, scored=scored)
        self.tracker.in_background(partial(self.rollouts.compare, made))
        return made

    def _wait(self, batch: AdmittedBatch, groups: Groups, poll: Callable[[], object]) -> list[Trajectory]:
        """Wait for a batch that was begun; its greedy answers go to `groups`."""
        assert batch.future is not None
        finished, under_way = self.stream.waiting()
        groups.metrics |= {"perf/queue_groups": float(finished), "perf/running_groups": float(under_way)}
        groups.metrics["perf/window"] = float(self.stream.window.size)
        begun, self._spare = self.clock(), self.stream.spare()
        with self.tracker.phase("rollout"):
            made = self.rollouts.wait(batch.future, poll)
        self._waited += self.clock() - begun
        groups.greedy |= {t.row.uid: t for t in made if t.sample == self.config.rollout.n}
        return [t for t in made if t.sample < self.config.rollout.n]

    def _while_waiting(self, step: int, batch: AdmittedBatch) -> None:
        self._show_progress(batch)
        begun = self.clock()
        self.on_finished_groups(step, batch.finished, len(batch.rows))
        self._waited -= self.clock() - begun  # it has worked

    def _show_progress(self, batch: AdmittedBatch) -> None:
        self.tracker.view.progress(len(batch.finished), len(batch.rows) * self.stream.n)

    def _check(self, step: int, sampled: list[Trajectory]) -> None:
        """Stop a step that lost too much; what was sampled is written before."""
        self.tracker.record_rollouts(step, sampled)
        check_drops(sampled, self.config.rollout.max_infra_drop_share)


# A validation set, the step whose weights began it, and its trajectories.
Measured = tuple[ValRows, int, list[Trajectory]]


@dataclass(frozen=True)
class Validation:
    """Samples, records and measures the validation sets.

    Where trajectories continue while the policy trains, a named set is only begun in its turn: the first step that
    finds it finished measures it. `test_freq`: steps between the validations of a set without a number of its own;
    `begun`: the sets that are under way."""

    rollouts: Rollouts
    tracker: RunTracker
    sets: Sequence[ValRows]
    test_freq: int = -1
    begun: dict[str, tuple[ValRows, int, RolloutFuture]] = field(default_factory=dict)

    def __call__(self, step: int, *, every: bool = True) -> Metrics:
        """`val/` metrics of all sets, by the current weights; without `every`, of those whose turn it is. None where a
        stop is requested meanwhile."""
        due = [one for one in self.sets if every or one.due(step, self.test_freq)]
        beside = [one for one in due if one.name and not every and self.rollouts.background is not None]
        try:
            made = [*self._finished(every), *self._sampled(step, [one for one in due if one not in beside])]
        except Interrupted:
            self.tracker.view.note(f"The validation of step {step} is left out: trainer.val_only=true repeats it.")
            return {}
        for one in (one for one in beside if one.name not in self.begun):
            self.begun[one.name] = one, step, self.rollouts.begin_validation(one.rows, step, one.settings)
        if made:
            self.tracker.record_validation(step, [trajectory for _, _, found in made for trajectory in found])
        return {name: value for each in made for name, value in _figures(*each).items()}

    def _finished(self, every: bool) -> Iterator[Measured]:
        """The sets that were begun and are finished; `every` one is waited for."""
        for one, step, future in list(self.begun.values()):
            if every or future.done():
                del self.begun[one.name]
                yield one, step, self.rollouts.wait(future, lambda: None)

    def _sampled(self, step: int, sets: Sequence[ValRows]) -> Iterator[Measured]:
        """The trajectories of sets by the current weights; nothing is trained meanwhile."""
        if not sets:
            return
        with self.tracker.rollout_phase("validate", sum(len(one.rows) * one.settings.n for one in sets)) as on_done:
            for one in sets:
                made = (self.rollouts.validate(rows, step, on_done, one.settings) for rows in one.batches)
                yield one, step, [trajectory for batch in made for trajectory in batch]


def _figures(one: ValRows, step: int, trajectories: list[Trajectory]) -> Metrics:
    """Metrics of a set; a named one has its step and intervals, too."""
    if not one.name:
        return validation_metrics(trajectories)
    further = estimates(trajectories)
    return validation_metrics(trajectories, f"val/{one.name}", step=float(step), **further)


def stream_of(config: Config, splits: Splits) -> Stream:
    """The stream of a run's training rows."""
    bound, size = config.trainer.max_staleness, config.data.train_batch_size
    return Stream(splits.train, bound=bound, batch_size=size, n=group_size(config), last_step=splits.total_steps)


def kept_groups(
    trajectories: Sequence[Trajectory], metric: str, score: ScoreFn, keep: str = "differing"
) -> dict[str, list[Trajectory]]:
    """By row uid, the groups that the filter `keep` takes by the `metric` of their scored trajectories.

    `score` gives the scores of a trajectory's sides, turn rewards included: a group is kept where the filter takes it
    for any side. Raises UserError when a reward function does not return the metric, and for a filter that is not there
    or fails.
    """
    groups = grouped(trajectories, lambda trajectory: trajectory.row.uid)
    return {uid: group for uid, group in groups.items() if _is_kept(group, metric, score, keep)}


def _is_kept(group: Sequence[Trajectory], metric: str, score: ScoreFn, keep: str) -> bool:
    sides = zip_longest(*(_values(trajectory, metric, score) for trajectory in group if trajectory.scored))
    return any(keeps(keep, [value for value in side if value is not None], group) for side in sides)


def _values(trajectory: Trajectory, metric: str, score: ScoreFn) -> list[float]:
    """The metric: of each side, if it is the score."""
    if metric in SCORE:
        return [value - trajectory.length_penalty for value in score(trajectory)]
    numbers = {name: value for name, value in trajectory.reward_extra.items() if isinstance(value, Real)}
    if metric not in numbers:
        known = ", ".join(dict.fromkeys(["score", *numbers]))
        raise UserError(
            f"algorithm.filter_groups.metric={metric}: no reward function returns such a number; take {known}"
        )
    return [float(numbers[metric])]
