"""Rows leave the stream in order, none older than the bound, none lost, none twice; checkpoints hold the queue."""

import io
import random
from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agentrl.config import compose
from agentrl.core.errors import UserError
from agentrl.data import Loader
from agentrl.data.splits import Splits
from agentrl.rollout.sampler import Sampler, stream_of
from agentrl.rollout.window import StalenessWindow, staleness_metrics
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.plain import from_plain, medium_from, plain_medium, restored_groups, saved_groups, to_plain
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory, TurnReward

FILTER = "algorithm.filter_groups.enable=true"


class Made:
    """Trajectories that are finished when a wait for them begins, drawn by every version from `first` to then."""

    def __init__(self, workers, batch, n):
        self.workers, self.batch, self.n, self.first = workers, batch, n, workers.version

    def result(self, poll=lambda: None):
        for i in range(len(self.batch.rows) * self.n):
            if i not in self.batch.finished:
                self.batch.finished[i] = self.workers.make(self.batch, i, self.first)
        return [self.batch.finished[i] for i in range(len(self.batch.rows) * self.n)]

    def done(self):
        return True


class Workers:
    """Begins batches; each trajectory's first token has the version of that moment."""

    def __init__(self, n=2, flat=0.0):
        self.n, self.flat, self.version = n, flat, 0
        self.made = Counter()
        self.random = random.Random(7)

    def begin(self, batch):
        return Made(self, batch, self.n)

    def wait(self, future, poll):
        return future.result(poll)

    def activity(self):
        return {}

    def make(self, batch, i, first):
        row, sample = batch.rows[i // self.n], i % self.n
        ledger = Ledger()
        ledger.append_prompt([1, 2])
        ledger.append_model([3, 4], [-0.5, -0.5], turn=0, version=[first, self.version])
        key = f"{batch.number}/{row.uid}/{sample}"
        self.made[key] += 1
        trajectory = Trajectory(row, key, sample, ledgers=[ledger], reward=float(sample))
        if sample == 0 and self.random.random() < self.flat:
            trajectory.reward = 1.0
        return trajectory


class Waiting(Workers):
    """Turns the clock while a batch is waited for."""

    now, seconds, requests = 0.0, 3.0, 1.0

    def begin(self, batch):
        made = super().begin(batch)
        finish = made.result

        def result(poll=lambda: None):
            self.now += self.seconds
            poll()
            return finish(poll)

        made.result = result
        return made

    def activity(self):
        return {"perf/running_requests": self.requests}


class Quiet:
    """A tracker without a run."""

    view = SimpleNamespace(progress=lambda done, total: None)

    def phase(self, name):
        return nullcontext()

    def wait_for_background(self):
        """Nothing runs."""

    def record_rollouts(self, step, trajectories):
        self.rows = len(trajectories)


@cache
def composed(*overrides):
    return compose(["rollout.n=2", *overrides], checks=())


def sampler(bound, *overrides, rows=23, batch=3, workers=None, steps=1000):
    config = deepcopy(composed(f"trainer.max_staleness={bound}", *overrides))
    config.data.train_batch_size = batch
    loader = Loader([Row(f"r{i}", []) for i in range(rows)], batch, shuffle=True, seed=0)
    workers = workers or Workers()
    stream = stream_of(config, Splits(loader, [], steps))
    stream.window = StalenessWindow(bound + 1, batch, bound + 1)  # as far ahead as the bound allows
    return Sampler(config, workers, stream, Quiet()), workers


def train(sample, workers, steps):
    """Take steps; yields each step's groups. The version is the number of steps that are done."""
    for step in steps:
        groups = sample(step)
        yield step, groups
        workers.version = step


@pytest.mark.prevents("asynchronous training drops what grew too old, so the data is biased to short conversations")
@pytest.mark.parametrize("bound", [1, 2, 4])
@pytest.mark.parametrize("flat", [None, 0.6])
def test_a_thousand_steps_drop_nothing_and_respect_the_bound(bound, flat):
    workers = Workers(flat=flat or 0.0)
    sample, _ = sampler(bound, *([] if flat is None else [FILTER]), workers=workers, rows=302)
    trained, rolled, oldest = Counter(), Counter(), 0.0
    for _, groups in train(sample, workers, range(1, 1001 if bound == 2 else 101)):
        assert len(groups.trained) == 6
        trained.update(t.key for t in groups.trained)
        rolled.update(t.key for t in groups.sampled)
        oldest = max(oldest, groups.metrics["staleness/max"])
    assert oldest == bound if flat is None else 0 < oldest <= bound
    assert set(trained.values()) == set(rolled.values()) == set(workers.made.values()) == {1}
    if flat is None:
        assert trained == rolled == workers.made  # nothing is begun that no step trains on
    else:
        left = len(workers.made) - len(rolled)
        assert left <= (bound + 1) * 6  # the rest is in the queue


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.floats(0, 0.95), st.integers(0, 9))
def test_no_token_is_older_than_the_bound(bound, batch, gen, flat, rows):
    workers = Workers(flat=flat)
    sample, _ = sampler(bound, FILTER, batch=batch, rows=batch * gen + rows, workers=workers)
    sample.stream.loader = Loader(sample.stream.loader.rows, batch * min(gen, bound), shuffle=True, seed=1)
    for _, groups in train(sample, workers, range(1, 30)):
        assert groups.metrics.get("staleness/max", 0.0) <= bound


def test_the_order_is_the_loaders_and_the_steps_of_bound_0():
    sample, workers = sampler(3)
    rows = Loader(sample.stream.loader.rows, 3, shuffle=True, seed=0)
    for step, groups in train(sample, workers, range(1, 40)):
        assert [t.row.uid for t in groups.trained[::2]] == [row.uid for row in rows.next_batch()]
        assert {t.key.partition("/")[0] for t in groups.trained} == {str(step)}


def test_nothing_is_begun_that_no_step_trains_on():
    sample, workers = sampler(4, steps=3)
    for step, groups in train(sample, workers, range(1, 4)):
        assert groups.metrics["perf/running_groups"] + groups.metrics["perf/queue_groups"] == (3 - step) * 3


def test_greedy_answers_are_sampled_with_their_row_and_come_back_as_baselines():
    remax = ["algorithm.adv_estimator=remax", FILTER, "data.gen_batch_size=3"]
    workers = Workers(n=3, flat=0.5)
    sample, _ = sampler(2, *remax, workers=workers, batch=2)
    for _, groups in train(sample, workers, range(1, 20)):
        assert {t.sample for t in groups.trained} <= {0, 1}
        assert groups.baselines == {t.row.uid: 2.0 for t in groups.trained}  # the reward of sample 2, which is greedy
        assert all(t.sample < 2 for t in groups.sampled)
    assert set(workers.made.values()) == {1}  # also of groups that waited for the next step


def resumed(sample, workers, bound=2, *overrides, **options):
    """Another process with the state that a checkpoint has, through the plain data of one."""
    other, _ = sampler(bound, *overrides, workers=workers, **options)
    other.stream.load_state_dict(stored(sample.stream.state_dict()))
    return other


def stored(state):
    """The state as a checkpoint returns it."""
    return restored_groups(loaded(saved_groups(state)))


def loaded(plain):
    """Plain data as a file returns it: loading it runs no code."""
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("extra", [[], [FILTER]])
def test_a_resumed_run_loses_nothing_and_trains_on_nothing_twice(extra):
    workers = Workers(flat=0.5 if extra else 0.0)
    sample, _ = sampler(2, *extra, workers=workers)
    trained = Counter()
    for start, killed in pairwise((0, 3, 4, 9, 10, 30)):
        for _, groups in train(sample, workers, range(start + 1, killed + 1)):
            trained.update(t.key for t in groups.trained)
            for batch in sample.stream._queue:
                batch.future = batch.future or workers.begin(batch)  # what was given back is begun with the next step
                batch.future.result()
        other, _ = sampler(2, *extra, workers=workers)
        other.stream.load_state_dict(stored(sample.stream.state_dict()))
        sample = other
    assert set(trained.values()) == {1}
    assert set(workers.made.values()) == {1}  # what was finished is not made again


def test_a_run_samples_one_batch_ahead_until_the_trainer_waits_for_a_few():
    sample, workers = sampler(4)
    sample.stream.window = StalenessWindow(5, 3)
    ages = [groups.metrics["staleness/max"] for _, groups in train(sample, workers, range(1, 9))]
    assert ages == [0, *[1] * 7]
    assert sample.stream.state_dict()["window"] == 2


def test_the_waits_for_groups_and_the_engines_requests_choose_how_far_ahead():
    workers = Waiting()
    sample, _ = sampler(4, workers=workers)
    sample.stream.window, sample.clock = StalenessWindow(5, 6), lambda: workers.now
    sizes = []
    for step, groups in train(sample, workers, range(1, 28)):
        sizes.append(groups.metrics["perf/window"])
        workers.now += 10.0  # the update
        workers.seconds = 3.0 if step < 12 else 0.0
    assert sizes[:12] == [2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5]  # the first step has nothing before it
    assert sizes[12:] == [*[5] * 8, *[4] * 4, *[3] * 3]
    workers.seconds, workers.requests = 3.0, 4.0
    assert [g.metrics["perf/window"] for _, g in train(sample, workers, range(28, 33))] == [2] * 5


def test_work_during_a_wait_is_no_wait():
    workers, seen = Waiting(), []
    sample, _ = sampler(4, workers=workers)
    sample.stream.window.record = seen.append
    sample.clock = lambda: workers.now

    looks = []

    def look(step, finished, groups):
        looks.append((step, len(finished), groups))
        workers.now += 2.0

    sample.on_finished_groups = look
    for _ in train(sample, workers, range(1, 4)):
        pass
    assert looks == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert [(taken.seconds, taken.waited) for taken in seen] == [(5.0, 3.0)] * 2


def test_what_was_under_way_starts_over_under_the_same_key():
    sample, workers = sampler(2)
    list(train(sample, workers, [1]))
    first, second = sample.stream._queue
    first.finished[0] = workers.make(first, 0, 0)
    again = resumed(sample, workers)
    groups = again(2)
    assert [t.key for t in groups.trained] == [f"2/{row.uid}/{i}" for row in first.rows for i in range(2)]
    assert workers.made[f"2/{first.rows[0].uid}/0"] == 1
    assert again.stream._queue[0].rows == second.rows


def test_a_smaller_bound_or_another_n_starts_over():
    sample, workers = sampler(4)
    list(train(sample, workers, [1]))
    for batch in sample.stream._queue:
        batch.future.result()
    for overrides in ([], ["rollout.n=3"]):
        again = resumed(sample, workers, 1 if not overrides else 4, *overrides)
        restored = list(again.stream._restored)
        assert restored
        assert not any(batch.finished for batch in restored)
    assert resumed(sample, workers, bound=1)(2).metrics["staleness/max"] <= 1


def test_a_step_that_ends_early_keeps_what_is_finished_and_repeats_what_failed():
    sample, workers = sampler(2)
    groups = sample(1)
    groups.trained[0].outcome = Outcome.INFRA_ERROR
    sample.stream.undo()
    assert sample.stream.state_dict()["queue"][0]["number"] == 1
    again = sample(1)
    assert [t.key for t in again.trained] == [t.key for t in groups.trained]
    assert workers.made[groups.trained[0].key] == 2
    assert workers.made[groups.trained[1].key] == 1


def test_the_stream_needs_the_same_rows():
    sample, workers = sampler(1)
    with pytest.raises(UserError, match="24 rows now, 23 when"):
        resumed(sample, workers, rows=24)


def test_a_trajectory_comes_back_as_it_was():
    row = Row("a", [{"role": "user", "content": "?"}])
    ledger = Ledger()
    ledger.append_prompt([1, 2**30])
    ledger.append_model([3], [-0.1], turn=0, version=7)
    whole = Trajectory(row, "3/a/1", 1, [{"role": "user", "content": "é"}], [{"name": "f"}], [ledger])
    whole.tool_calls.append(ToolCallRecord(0, "f", {"x": 1}, "said", Outcome.OK, 0.5))
    whole.turn_rewards.append(TurnReward(0, 0.25, "tool"))
    whole.spans.append(Span("generate", 1.0, 2.0))
    whole.outcome, whole.reward, whole.reward_extra = Outcome.MODEL_ERROR, 1 / 3, {"acc": 1.0}
    assert from_plain(loaded(to_plain(whole, {})), row, []) == whole


def test_images_come_back_once_for_a_group():
    picture = Image.new("RGB", (3, 2), "red")
    medium = Medium("image", picture, "<pad>", (9, 9), (9,), {9: 1}, {"pixel_values": torch.ones(2, 4)})
    row, table = Row("a", []), {}
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "image": medium}]}]
    ledger = Ledger(media=[medium])
    ledger.append_prompt([1, 9, 9])
    plain = [to_plain(Trajectory(row, f"3/a/{i}", i, messages, ledgers=[ledger]), table) for i in range(2)]
    plain, media = loaded([plain, [plain_medium(each) for each in table]])
    (back,) = (medium_from(**each) for each in media)
    for trajectory in (from_plain(each, row, [back]) for each in plain):
        assert trajectory.messages[0]["content"][1]["image"] is back
        assert trajectory.ledgers[0].media == [back]
    assert (back.ids, back.short, back.types, back.text) == ((9, 9), (9,), {9: 1}, "<pad>")
    assert back.features["pixel_values"].tolist() == [[1.0] * 4] * 2
    assert back.data_url() == medium.data_url()


def test_staleness_is_of_tokens():
    ledger = Ledger()
    ledger.append_prompt([1])
    ledger.append_model([2, 3, 4, 5], [-1.0] * 4, turn=0, version=[2, 2, 3, 5])
    trajectory = Trajectory(Row("a", []), "k", 0, ledgers=[ledger])
    assert staleness_metrics([trajectory], 5) == {
        "staleness/mean": 2.0,
        "staleness/max": 3.0,
        "staleness/mixed": 1.0,
        "staleness/share_0": 0.25,
        "staleness/share_2": 0.25,
        "staleness/share_3": 0.5,
    }
    assert staleness_metrics([], 5) == {}
