"""Waits are spans of their own."""

import pytest

from agentrl.core.clocks import began, listening
from agentrl.rollout import episode as episodes
from agentrl.rollout.episode import Episode, recorded
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import row


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the test sets it."""
    now = [100.0]
    monkeypatch.setattr(episodes, "now", lambda: now[0])
    return now


def spans(clock: list[float], *beginnings: float, end: float) -> list[tuple[str, float, float]]:
    trajectory = Trajectory(row("r:0"), "1/r:0/0", 0)
    episode = object.__new__(Episode)
    episode.trajectory = trajectory
    with recorded(episode.trajectory, "tool"):
        for at in beginnings:
            began(at)
        clock[0] = end
    return [(span.kind, span.start, span.end) for span in trajectory.spans]


def test_a_wait_ends_where_the_first_of_the_calls_begins(clock: list[float]) -> None:
    assert spans(clock, 103.0, 101.5, end=104.0) == [("wait", 100.0, 101.5), ("tool", 101.5, 104.0)]


def test_what_begins_at_once_or_says_nothing_does_not_wait(clock: list[float]) -> None:
    assert spans(clock, 100.0005, end=101.0) == [("tool", 100.0, 101.0)]
    clock[0] = 100.0
    assert spans(clock, end=101.0) == [("tool", 100.0, 101.0)]


def test_nobody_listens() -> None:
    began()
    with listening() as outer:
        with listening() as inner:
            began(1.0)
        began(2.0)
    assert (inner, outer) == ([1.0], [2.0])
