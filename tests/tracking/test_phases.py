"""The phase timer under a clock that the test turns by hand."""

import pytest

from agentrl.tracking.phases import Phases


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_phases_and_rates(clock):
    phases = Phases(clock=clock)
    with phases("rollout"):
        clock.now += 4
    clock.now += 1
    with phases("update", tokens=50):
        clock.now += 2
    with phases("rollout", tokens=400):
        clock.now += 1
    phases.count("rollout", 600)
    phases.count("unknown", 7)
    assert phases.metrics() == {
        "time/rollout": 5.0,
        "time/update": 2.0,
        "time/step": 8.0,
        "perf/rollout_tokens_per_s": 200.0,
        "perf/update_tokens_per_s": 25.0,
    }


def test_each_step_starts_from_zero(clock):
    phases = Phases(clock=clock)
    with phases("rollout"):
        clock.now += 4
    phases.metrics()
    with phases("update"):
        clock.now += 1
    assert phases.metrics() == {"time/update": 1.0, "time/step": 1.0}


def test_an_inner_phase_pauses_the_outer_one(clock):
    entered = []
    phases = Phases(clock)
    phases.watch(entered.append)
    with phases("rollout"):
        clock.now += 1
        with phases("score"):
            clock.now += 2
        clock.now += 4
    metrics = phases.metrics()
    assert (metrics["time/rollout"], metrics["time/score"], metrics["time/step"]) == (5.0, 2.0, 7.0)
    assert entered == ["rollout", "score", "rollout"]


def test_a_phase_that_fails_is_timed_and_over(clock):
    phases = Phases(clock=clock)

    def fail():
        with phases("rollout"):
            clock.now += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    clock.now += 1
    assert phases.metrics() == {"time/rollout": 3.0, "time/step": 4.0}


def test_no_rate_without_time(clock):
    phases = Phases(clock=clock)
    with phases("rollout", tokens=10):
        pass
    assert "perf/rollout_tokens_per_s" not in phases.metrics()
