"""Which trajectories a step trains on: one batch of prompts, the groups that differ, and greedy baselines."""

from contextlib import nullcontext
from functools import partial

import pytest

from agentrl.config import compose
from agentrl.config.schema import Reward
from agentrl.core.errors import UserError
from agentrl.data import Loader
from agentrl.data.splits import Splits
from agentrl.rollout import sampler as sampler_module
from agentrl.rollout.sampler import Sampler, kept_groups, stream_of
from agentrl.training.batches.packing import total_rewards
from agentrl.trajectory.drops import TooManyDrops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward
from tests.training.tiny import ledger


class Scripted:
    """A runtime whose trajectories earn what the row says: `extra_info.rewards`, one a sample, None for a failure."""

    teachers = ()

    def __init__(self):
        self.rolled: list[tuple[str, list[str]]] = []

    def sample(self, rows, step, on_done, *, scored=True):
        self.rolled.append(("train", [row.uid for row in rows]))
        return [self.trajectory(row, i, r) for row in rows for i, r in enumerate(row.extra_info["rewards"])]

    def compare(self, trajectories):
        """Nothing to record."""

    def activity(self):
        return {}

    def greedy(self, rows, step, on_done):
        self.rolled.append(("greedy", [row.uid for row in rows]))
        return [self.trajectory(row, 0, row.extra_info["greedy"]) for row in rows]

    def trajectory(self, row, sample, reward):
        outcome = Outcome.INFRA_ERROR if reward is None else Outcome.OK
        made = Trajectory(row, f"{row.uid}/{sample}", sample, ledgers=[ledger(2, seed=sample)], outcome=outcome)
        made.reward, made.reward_extra = reward, {} if reward is None else {"acc": float(reward > 0.5)}
        return made


class Quiet:
    """Keeps what a step rolled, as it is written to the dump."""

    def __init__(self):
        self.dump = None

    def rollout_phase(self, name, total):
        return nullcontext(lambda _: None)

    def record_rollouts(self, step, trajectories):
        self.dump = step, list(trajectories)

    def in_background(self, work):
        work()

    def wait_for_background(self):
        """Nothing runs."""


def sampler(groups, *overrides, batch=2, greedy=0.25):
    config = compose([f"data.train_batch_size={batch}", *overrides], checks=())
    rows = [Row(f"r{i}", [], extra_info={"rewards": rewards, "greedy": greedy}) for i, rewards in enumerate(groups)]
    runtime = Scripted()
    stream = stream_of(config, Splits(Loader(rows, batch, shuffle=False, seed=0), [], total_steps=100))
    return Sampler(config, runtime, stream, Quiet()), runtime


def uids(sample):
    return list(dict.fromkeys(t.row.uid for t in sample.trained))


DIFFER, SAME = [1.0, 0.0], [1.0, 1.0]
FILTER = "algorithm.filter_groups.enable=true"


def test_a_step_takes_one_batch():
    sample, runtime = sampler([SAME, DIFFER, SAME, DIFFER])
    got = sample(1)
    assert uids(got) == ["r0", "r1"]
    assert got.trained is got.sampled
    assert got.baselines is None
    assert runtime.rolled == [("train", ["r0", "r1"])]


def by_mean(rows, *, scores):
    return sorted(range(len(rows)), key=lambda i: -scores[i].mean if i in scores else -0.9)


def test_a_sampler_sees_the_rewards_of_earlier_steps():
    sample, _ = sampler([SAME, SAME, DIFFER, DIFFER])
    sample.stream.loader = Loader(sample.stream.loader.rows, 2, shuffle=False, seed=0, sampler=f"{__name__}.by_mean")
    seen = []
    for step in range(1, 4):
        groups = sample(step)
        seen.append(uids(groups))
        sample.stream.record(step, groups.sampled)
    assert seen == [["r0", "r1"]] * 3  # solved rows come first in this order
    before = dict(sample.stream.loader.scores)
    sample(4)
    sample.stream.undo()
    assert sample.stream.loader.scores == before


def test_dynamic_sampling_draws_until_enough_groups_differ():
    sample, runtime = sampler([SAME, DIFFER, SAME, SAME, DIFFER, DIFFER, DIFFER, DIFFER], FILTER)
    got = sample(1)
    assert uids(got) == ["r1", "r4"]  # the third batch's second prompt is one too many
    assert len(got.sampled) == 12
    assert got.metrics == {"rollout/gen_batches": 3.0, "rollout/kept_groups": 2.0}
    assert runtime.rolled[-1] == ("train", ["r4", "r5"])


def test_dynamic_sampling_stops_and_trains_on_what_there_is():
    sample, runtime = sampler([SAME, DIFFER, SAME, SAME], FILTER, "algorithm.filter_groups.max_num_gen_batches=1")
    assert uids(sample(1)) == ["r1"]
    assert len(runtime.rolled) == 1
    sample, runtime = sampler([SAME, SAME, SAME, SAME], FILTER, "algorithm.filter_groups.max_num_gen_batches=0")
    assert sample(1).trained == []
    assert len(runtime.rolled) == 2  # an epoch, and no endless loop


def whose_sum_is_two(values):
    return sum(values) == 2.0


def test_another_filter_keeps_other_groups():
    sample, _ = sampler([DIFFER, SAME], FILTER, f"algorithm.filter_groups.keep={__name__}.whose_sum_is_two")
    assert uids(sample(1)) == ["r1"]


def test_groups_may_differ_by_another_value():
    sample, _ = sampler([[0.6, 1.0], [0.2, 1.0]], FILTER, "algorithm.filter_groups.metric=acc")
    assert uids(sample(1)) == ["r1"]
    sample, _ = sampler([DIFFER, DIFFER], FILTER, "algorithm.filter_groups.metric=beauty")
    with pytest.raises(UserError, match=r"metric=beauty: no reward function returns such a number; take score, acc"):
        sample(1)


def test_length_does_not_make_a_group_differ():
    sample, runtime = sampler([[-0.1, -0.9], [1.0, 0.5], DIFFER], FILTER, batch=1)
    short, made = {("r0", 0): -0.1, ("r0", 1): -0.9, ("r1", 1): -0.5}, runtime.trajectory

    def shaped(row, number, reward):
        trajectory = made(row, number, reward)
        trajectory.length_penalty = short.get((row.uid, number), 0.0)
        return trajectory

    runtime.trajectory = shaped
    assert uids(sample(1)) == ["r2"]


LOST = [None, None]


@pytest.mark.parametrize("more", [[], [FILTER]])
def test_a_step_that_lost_too_much_stops_before_it_is_trained_on(more):
    sample, _ = sampler([LOST, LOST, DIFFER, DIFFER], "rollout.max_infra_drop_share=0.7", *more, batch=3)
    with pytest.raises(TooManyDrops, match=r"took 4 of 6 .*max_infra_drop_share=0\.6"):
        sampler([LOST, LOST, DIFFER], "rollout.max_infra_drop_share=0.6", *more, batch=3)[0](1)
    assert uids(sample(1)) == (["r2"] if more else ["r0", "r1", "r2"])
    assert sample.tracker.dump[0] == 1


def test_refills_do_not_hide_what_is_lost():
    """Whole groups lost: other prompts would take their place, batch after batch, and nobody would know."""
    sample, runtime = sampler([SAME, DIFFER, LOST, LOST, LOST, DIFFER, DIFFER, DIFFER], FILTER)
    runtime.sample([], 0, None)
    sample.config.rollout.max_infra_drop_share = 0.4
    with pytest.raises(TooManyDrops, match="took 4 of 8 trajectories"):
        sample(1)
    assert len(sample.tracker.dump[1]) == 8


def test_baselines_that_are_lost_count():
    sample, _ = sampler([DIFFER, SAME], "algorithm.adv_estimator=remax", greedy=None)
    with pytest.raises(TooManyDrops, match="took 2 of 2"):
        sample(1)


def test_a_group_in_which_any_policy_earns_differently_is_kept():
    rows = [Row(uid, [], extra_info={"rewards": [0.0, 0.0]}) for uid in ("second", "turn", "same")]
    made = Scripted().sample(rows, 1, None)
    for trajectory in made:
        trajectory.ledgers.append(ledger(1, 2))
        trajectory.ledgers[1].side = 1
        trajectory.side_rewards = [0.0, float(trajectory.key == "second/1")]
    made[3].turn_rewards = [TurnReward(1, 1.0, "environment")]
    score = partial(total_rewards, turn_weights=Reward().turn_weights)
    assert {*kept_groups(made, "score", score)} == {"second", "turn"}
    assert kept_groups(made, "acc", score) == {}


def test_a_filter_gets_a_list_and_all_values_of_each_side(monkeypatch):
    given = list[list[float]]()

    def noting(name, values, trajectories):
        values.sort()
        given.append(values)
        return False

    made = Scripted().sample([Row("r", [], extra_info={"rewards": [0.0, 0.0, 0.0]})], 1, None)
    scores = {"r/0": [3.0, 2.0], "r/1": [1.0], "r/2": [2.0, 1.0]}
    monkeypatch.setattr(sampler_module, "keeps", noting)
    assert kept_groups(made, "score", lambda t: scores[t.key]) == {}
    assert given == [[1.0, 2.0, 3.0], [1.0, 2.0]]


def test_failures_do_not_make_a_group_differ():
    runtime = Scripted()
    rows = [
        Row("r0", [], extra_info={"rewards": [1.0, None, 1.0]}),
        Row("r1", [], extra_info={"rewards": [None, None]}),
    ]
    assert kept_groups(runtime.sample(rows, 1, None), "score", lambda t: [t.reward]) == {}


def test_remax_asks_for_one_greedy_answer_a_prompt():
    sample, runtime = sampler([DIFFER, SAME], "algorithm.adv_estimator=remax")
    got = sample(1)
    assert runtime.rolled[-1] == ("greedy", ["r0", "r1"])
    assert len(got.trained) == 4  # the greedy answers are not trained on
    assert got.baselines == {"r0": 0.25, "r1": 0.25}


def test_a_failed_greedy_answer_is_no_baseline():
    sample, _ = sampler([DIFFER, SAME], "algorithm.adv_estimator=remax")
    sample.stream.loader.rows[1].extra_info["greedy"] = None
    got = sample(1)
    assert got.baselines == {"r0": 0.25}


def test_dynamic_sampling_draws_no_row_twice_in_a_step():
    """Across an epoch's end: with an order anew, the rows of the last batch may come again in the next."""
    sample, runtime = sampler([DIFFER, SAME, SAME], FILTER, "algorithm.filter_groups.max_num_gen_batches=4")
    sample.stream.loader = Loader(sample.stream.loader.rows, 2, shuffle=False, seed=0, drop_last=False)
    got = sample(1)
    drawn = [uid for _, rows in runtime.rolled for uid in rows]
    assert drawn == ["r0", "r1", "r2"]
    assert len({t.key for t in got.sampled}) == len(got.sampled) == 6
    assert got.metrics == {"rollout/gen_batches": 4.0, "rollout/kept_groups": 1.0}


def with_turn_rewards(runtime, *values):
    """The i-th trajectory of each prompt earns this from a tool, beside its reward."""
    made = runtime.trajectory

    def earning(row, number, reward):
        trajectory = made(row, number, reward)
        trajectory.turn_rewards = [TurnReward(0, values[number], "tool")]
        return trajectory

    runtime.trajectory = earning


def test_what_turns_earn_makes_a_group_differ_where_it_counts():
    for weight, kept in ((0.0, []), (0.5, ["r0"])):
        sample, runtime = sampler([SAME, DIFFER], FILTER, f"reward.tool_turn_weight={weight}", batch=1)
        with_turn_rewards(runtime, 0.2, 0.4)
        assert uids(sample(1))[:1] == (kept or ["r1"])
    sample, runtime = sampler([[0.9, 1.0]], FILTER, "reward.tool_turn_weight=1", batch=1)
    with_turn_rewards(runtime, 0.1, 0.0)  # the same in all
    assert uids(sample(1)) == []


def test_a_greedy_answer_is_scored_as_those_it_is_compared_with():
    sample, runtime = sampler([DIFFER], "algorithm.adv_estimator=remax", "reward.tool_turn_weight=0.5", batch=1)
    with_turn_rewards(runtime, 0.2, 0.4)
    got = sample(1)
    assert got.baselines == pytest.approx({"r0": 0.35})
