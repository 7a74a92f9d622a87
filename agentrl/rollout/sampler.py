"""Takes the groups of trajectories that a step trains on.

Invariants: the rows of a step come from the stream alone, so a run that resumes draws the same ones. With
`trainer.max_staleness=0`, rows are sampled when their step begins, and groups that a step does not keep are not used
later; otherwise rows are sampled ahead, and groups that a step has no room for are used in the next one.
"""

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real

from agentrl.algorithms.filters import keeps
from agentrl.config.derived import group_size, has_baselines
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.core.limit import limit_of
from agentrl.data.splits import Splits
from agentrl.rollout.staleness import staleness_metrics
from agentrl.rollout.stream import AdmittedBatch, Deferred, Pending, Stream
from agentrl.rollout.window import Taken
from agentrl.rollout.workers import OnDone, RolloutWorkers
from agentrl.tracking import rollout_metrics
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.training.batches.packing import total_reward
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

# What verl calls the score itself, in its several versions.
SCORE = ("score", "seq_reward", "seq_final_reward")

Earned = Callable[[Trajectory], float]
Look = Callable[[int, Mapping[int, Trajectory], int], object]
"""Gets a step, the trajectories of its batch that are finished, by index, group by group, and its number of groups."""


@dataclass
class Groups:
    """The trajectories of a step, group by group."""

    rolled: list[Trajectory] = field(default_factory=list)
    """All of them."""
    kept: list[Trajectory] = field(default_factory=list)
    """Those of the prompts that are trained on, group by group."""
    metrics: Metrics = field(default_factory=dict)
    greedy: dict[str, Trajectory] = field(default_factory=dict)
    """By row uid, the prompt's greedy answer, where the estimator asks for it."""
    baselines: dict[str, float] | None = None
    """By row uid, its score; None: nobody asks for it."""
    version: int | None = None
    """Of the policy that is trained, where tokens may be of older ones."""

    def summary(self) -> Metrics:
        """Metrics of all trajectories, and those of the sampler."""
        return rollout_metrics(self.rolled) | self.metrics


class Sampler:
    """Draws rows and collects their rollouts."""

    def __init__(
        self,
        config: Config,
        workers: RolloutWorkers,
        stream: Stream,
        tracker: RunTracker,
        clock: Callable[[], float] = time.perf_counter,
        look: Look = lambda step, finished, groups: None,
    ) -> None:
        """`clock`: seconds; the waits for groups are measured with it. `look`: sees the groups of a step while the
        trainer waits for them."""
        self.config = config
        self.workers = workers
        self.stream = stream
        self.tracker = tracker
        self.ahead = config.trainer.max_staleness > 0
        reward = config.reward
        tool, user = reward.tool_turn_weight, reward.interaction_turn_weight
        self.earned: Earned = partial(total_reward, tool_turn_weight=tool, interaction_turn_weight=user)
        self.clock, self.look = clock, look
        self._waited, self._last, self._spare = 0.0, math.nan, False

    def __call__(self, step: int) -> Groups:
        """The trajectories of a step: of one batch of prompts, or of as many as `filter_groups` asks for.

        Raises TooManyDrops.
        """
        filter_groups = self.config.algorithm.filter_groups
        sample = self._dynamic(step) if filter_groups.enable else self._plain(step)
        if has_baselines(self.config):
            self._baselines(step, sample)
        if self.ahead:
            sample.version = step - 1
            sample.metrics |= staleness_metrics(sample.kept, sample.version) | self.workers.activity()
            self._look_further(sample.metrics)
        return sample

    def _look_further(self, metrics: Metrics) -> None:
        """Sample as far ahead as the waits ask for; the first step has no time before it."""
        now, requests = self.clock(), metrics.get("perf/running_requests")
        if now > self._last and requests is not None:
            self.stream.window.trains(Taken(now - self._last, self._waited, requests, self._spare))
        self._waited, self._last = 0.0, now

    def _baselines(self, step: int, sample: Groups) -> None:
        """The scores of greedy answers; rows that were sampled ahead have them already."""
        rows = {t.row.uid: t.row for t in sample.kept}
        if not self.ahead:
            greedy = self._roll("baseline", list(rows.values()), len(rows), step, self.workers.greedy)
            sample.greedy = {t.row.uid: t for t in greedy}
        answers = [answer for uid, answer in sample.greedy.items() if uid in rows]
        check_drops(answers, self.config.rollout.max_infra_drop_share)  # without a baseline, a prompt is not learned
        sample.baselines = {t.row.uid: self.earned(t) for t in answers if t.trainable}
        sample.metrics["rollout/baseline_mean"] = sum(sample.baselines.values()) / max(len(sample.baselines), 1)

    def _plain(self, step: int) -> Groups:
        groups = Groups()
        batch = self.stream.take(step, partial(self._begin, ()))
        groups.rolled = groups.kept = self._result(batch, groups, partial(self._look, step, batch))
        self._check(step, groups.rolled)
        return groups

    def _dynamic(self, step: int) -> Groups:
        """Batch after batch, until enough prompts have answers that differ (DAPO, arXiv 2503.14476).

        Across an epoch's end the loader gives rows again that this step has had. Where rows are sampled when the step
        begins, those are left out; where they were sampled ahead, both groups count, as one larger group.
        """
        size, filter_groups = self.config.data.train_batch_size, self.config.algorithm.filter_groups
        sample, groups, drawn, had = Groups(), list[list[Trajectory]](), 0, set[str]()
        most = limit_of(filter_groups.max_num_gen_batches) or self.stream.loader.steps_per_epoch
        while len(groups) < size and drawn < most:
            batch = self.stream.take(step, partial(self._begin, had), len(groups))
            trajectories = self._result(batch, sample, partial(self._show, batch))
            had |= {row.uid for row in batch.rows}
            groups += kept_groups(trajectories, filter_groups.metric, self.earned, filter_groups.keep).values()
            sample.rolled += trajectories
            self._check(step, sample.rolled)  # other prompts must not quietly take the place of those that are lost
            drawn += not batch.returned
        sample.kept = [trajectory for group in groups[:size] for trajectory in group]
        if self.ahead:
            self._return(step, sample, groups[size:])
        sample.metrics |= {"rollout/gen_batches": float(drawn), "rollout/kept_groups": float(min(len(groups), size))}
        return sample

    def _return(self, step: int, sample: Groups, later: Sequence[list[Trajectory]]) -> None:
        """Leave whole groups to the next step, which will count them."""
        self.stream.give_back([[*group, *self._greedy_of(group, sample)] for group in later])
        keys = {t.key for group in later for t in group}
        sample.rolled = [t for t in sample.rolled if t.key not in keys]
        self.tracker.rolled(step, sample.rolled)

    def _greedy_of(self, group: Sequence[Trajectory], sample: Groups) -> list[Trajectory]:
        answer = sample.greedy.get(group[0].row.uid)
        return [] if answer is None else [answer]

    def _result(self, batch: AdmittedBatch, sample: Groups, look: Callable[[], object]) -> list[Trajectory]:
        """Wait for the trajectories of a batch, and `look` meanwhile; its greedy answers go to `sample`."""
        assert batch.pending is not None
        if not self.ahead:
            return batch.pending.result()
        finished, under_way = self.stream.waiting()
        sample.metrics |= {"perf/queue_groups": float(finished), "perf/running_groups": float(under_way)}
        sample.metrics["perf/window"] = float(self.stream.window.size)
        begun, self._spare = self.clock(), self.stream.spare()
        with self.tracker.phase("rollout"):
            made = batch.pending.result(look)
        self._waited += self.clock() - begun
        sample.greedy |= {t.row.uid: t for t in made if t.sample == self.config.rollout.n}
        return [t for t in made if t.sample < self.config.rollout.n]

    def _look(self, step: int, batch: AdmittedBatch) -> None:
        self._show(batch)
        begun = self.clock()
        self.look(step, batch.finished, len(batch.rows))
        self._waited -= self.clock() - begun  # it has worked

    def _show(self, batch: AdmittedBatch) -> None:
        self.tracker.view.progress(len(batch.finished), len(batch.rows) * self.stream.n)

    def _begin(self, had: Container[str], batch: AdmittedBatch) -> Pending:
        if self.ahead:
            return self.workers.begin(batch)
        rows = [row for row in batch.rows if row.uid not in had]
        scored = self.config.algorithm.filter_groups.enable or not self.config.reward.launch_reward_fn_async
        return Deferred(lambda: self._train(rows, batch.number, scored=scored) if rows else [])

    def _check(self, step: int, rolled: list[Trajectory]) -> None:
        """Stop a step that lost too much; what was sampled is written before."""
        self.tracker.rolled(step, rolled)
        check_drops(rolled, self.config.rollout.max_infra_drop_share)

    def _train(self, rows: Sequence[Row], number: int, *, scored: bool = True) -> list[Trajectory]:
        rollout = partial(self.workers.rollout, scored=scored)
        return self._roll("rollout", rows, len(rows) * self.config.rollout.n, number, rollout)

    def _roll(
        self,
        phase: str,
        rows: Sequence[Row],
        total: int,
        step: int,
        rollout: Callable[[Sequence[Row], int, OnDone], list[Trajectory]],
    ) -> list[Trajectory]:
        with self.tracker.rolling(phase, total) as on_done:
            return rollout(rows, step, on_done)


def stream_of(config: Config, splits: Splits) -> Stream:
    """The stream of a run's training rows."""
    bound, size = config.trainer.max_staleness, config.data.train_batch_size
    return Stream(splits.train, bound=bound, batch_size=size, n=group_size(config), last_step=splits.total_steps)


def kept_groups(
    trajectories: Sequence[Trajectory], metric: str, earned: Earned, keep: str = "differing"
) -> dict[str, list[Trajectory]]:
    """By row uid, the groups that the filter `keep` takes by the `metric` of their scored trajectories.

    `earned` is a trajectory's score, what its turns got included. Raises UserError when a reward function does not
    return the metric, and for a filter that is not there or fails.
    """
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.row.uid, []).append(trajectory)
    return {
        uid: group
        for uid, group in groups.items()
        if keeps(keep, [_value(t, metric, earned) for t in group if t.scored], group)
    }


def _value(trajectory: Trajectory, metric: str, earned: Earned) -> float:
    if metric in SCORE:
        return earned(trajectory) - trajectory.length_penalty
    numbers = {name: value for name, value in trajectory.reward_extra.items() if isinstance(value, Real)}
    if metric not in numbers:
        known = ", ".join(dict.fromkeys(["score", *numbers]))
        raise UserError(
            f"algorithm.filter_groups.metric={metric}: no reward function returns such a number; take {known}"
        )
    return float(numbers[metric])
