"""A run that is killed and resumed after each step trains on the groups of an unbroken one, at the same ages."""

from collections import Counter
from contextlib import contextmanager

import pytest

from agentrl.data import Loader
from agentrl.rollout.episode import seed_for
from tests.rollout.test_stream import FILTER, Quiet, Workers, sampler, stored, train

pytestmark = pytest.mark.integration

STEPS = 14


class Repeatable(Workers):
    """The same rewards for the same keys, in any order; also without rollouts ahead."""

    teachers = ()

    def make(self, batch, i, first):
        trajectory = super().make(batch, i, first)
        flat = seed_for(0, trajectory.key.rpartition("/")[0], 0) % 100 < 100 * self.flat
        trajectory.reward = 1.0 if flat else float(trajectory.sample)
        return trajectory

    def sample(self, rows, step, on_done, *, scored=True):
        class Batch:
            number, finished = step, {}

        Batch.rows = rows  # type: ignore[attr-defined]
        return [self.make(Batch, i, self.version) for i in range(len(rows) * self.n)]

    def compare(self, trajectories):
        """Nothing to record."""


class Open(Quiet):
    @contextmanager
    def rollout_phase(self, phase, total):
        yield lambda trajectory: None

    def in_background(self, work):
        work()


def begun(bound, overrides, workers, gen, state=None, window=None):
    sample, _ = sampler(bound, *overrides, workers=workers, rows=37, batch=4, steps=STEPS)
    sample.tracker = Open()
    sample.stream.loader = Loader(sample.stream.loader.rows, gen, shuffle=True, seed=0)
    if state is not None:
        sample.stream.load_state_dict(stored(state))
    elif window:
        sample.stream.window.size = min(window, bound + 1)
    return sample


def taken(sample, workers, steps):
    """By step: keys and versions of the trained tokens, and the sampler's counts."""
    for step, groups in train(sample, workers, steps):
        for batch in sample.stream._queue:
            if batch.future is not None:
                batch.future.result()  # finished at this version in both runs
        versions = [(t.key, t.ledgers[0].versions.numpy().tolist()) for t in groups.trained]
        yield step, versions, groups.metrics.get("rollout/gen_batches"), groups.metrics.get("perf/window")


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("flat", [None, 0.4, 0.8])
@pytest.mark.parametrize(("bound", "gen"), [(0, 4), (0, 9), (1, 4), (4, 4), (4, 6), (4, 16)])
def test_a_run_resumed_after_each_step_equals_an_unbroken_one(bound, gen, flat, window):
    if flat is None and gen != 4:
        return  # another number of prompts needs the filter
    overrides = [] if flat is None else [FILTER]
    workers = Repeatable(flat=flat or 0.0)
    unbroken = list(taken(begun(bound, overrides, workers, gen, window=window), workers, range(1, STEPS + 1)))
    assert set(workers.made.values()) == {1}

    workers, found = Repeatable(flat=flat or 0.0), []
    sample = begun(bound, overrides, workers, gen, window=window)
    for step in range(1, STEPS + 1):
        found += taken(sample, workers, [step])
        sample = begun(bound, overrides, workers, gen, sample.stream.state_dict())
    assert found == unbroken
    assert set(workers.made.values()) == {1}  # no key twice, nothing made again


@pytest.mark.parametrize("flat", [None, 0.5])
@pytest.mark.parametrize(("before", "after"), [(4, 0), (4, 1), (4, 2), (3, 2), (0, 4), (1, 4)])
def test_another_bound_holds_from_the_first_resumed_step(before, after, flat):
    overrides = [] if flat is None else [FILTER]
    for killed in range(1, 12, 2):
        workers, trained = Repeatable(flat=flat or 0.0), Counter()
        sample = begun(before, overrides, workers, 4)
        for _, versions, *_ in taken(sample, workers, range(1, killed + 1)):
            trained.update(key for key, _ in versions)
        again = begun(after, overrides, workers, 4, sample.stream.state_dict())
        for step, groups in train(again, workers, range(killed + 1, STEPS + 1)):
            ages = [step - 1 - v for t in groups.trained for v in t.ledgers[0].versions.numpy().tolist()[2:]]
            assert max(ages, default=0) <= after
            assert len(groups.trained) == 8
            trained.update(t.key for t in groups.trained)
        assert set(trained.values()) == {1}


def test_smaller_batches_take_the_rows_of_a_larger_one():
    workers = Repeatable()
    sample = begun(2, [], workers, 4)
    list(taken(sample, workers, [1]))
    state = sample.stream.state_dict()
    again, _ = sampler(1, workers=workers, rows=37, batch=2)
    again.stream.load_state_dict(stored(state))
    for step, groups in train(again, workers, range(2, 9)):
        assert len(groups.trained) == 4
        assert groups.metrics["staleness/max"] <= 1, step


def test_an_empty_queue_keeps_its_numbers_and_its_window():
    workers = Repeatable(flat=0.75)
    sample = begun(4, [FILTER], workers, 16)
    for step, *_ in taken(sample, workers, range(1, STEPS + 1)):
        if not sample.stream._queue and sample.stream._numbered > step:
            break
    else:
        pytest.fail("the queue was never empty")
    again = begun(4, [FILTER], workers, 16, sample.stream.state_dict())
    assert (again.stream._numbered, again.stream.window.size) == (sample.stream._numbered, sample.stream.window.size)


@pytest.mark.parametrize("most", [0, -1])
def test_no_limit_of_batches_is_an_epoch(most):
    workers = Repeatable(flat=1.0)
    sample = begun(0, [FILTER, f"algorithm.filter_groups.max_num_gen_batches={most}"], workers, 4)
    (_, groups), *_ = train(sample, workers, [1])
    assert (groups.trained, groups.metrics["rollout/gen_batches"]) == ([], 9)
