"""When checkpoints are due, and which of them go."""

from pathlib import Path

import pytest

from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.save_schedule import INTERVAL, SHARE, SaveSchedule
from tests.training.saved import save_checkpoint


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_number_of_steps_is_kept() -> None:
    schedule = SaveSchedule(3)
    assert [step for step in range(1, 8) if schedule.due(step)] == [3, 6]
    assert not any(SaveSchedule(never).due(step) for never in (-1, 0) for step in range(1, 8))


@pytest.mark.prevents("a crash costs hours, because no checkpoint was configured")
def test_without_one_it_goes_by_time_and_cost() -> None:
    clock = Clock()
    schedule = SaveSchedule(None, clock=clock)
    clock.now = INTERVAL - 1
    assert not schedule.due(1)
    clock.now = INTERVAL
    assert schedule.due(2)
    with schedule.saving():
        clock.now += 120.0
    saved, clock.now = clock.now, clock.now + INTERVAL
    assert not schedule.due(3)  # the next one costs two minutes, too
    clock.now = saved + 120.0 / SHARE
    assert schedule.due(4)


def test_only_automatic_checkpoints_go_by_themselves(tmp_path: Path) -> None:
    for step in range(1, 7):
        save_checkpoint(tmp_path, step, {}, automatic=step not in (2, 6))
    assert checkpoints.prune(tmp_path, 2, automatic=True) == ["global_step_1", "global_step_3", "global_step_4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", "global_step_5", "global_step_6"]
    checkpoints.prune_part(tmp_path, "critic", 1)
    assert checkpoints.prune(tmp_path, 1, automatic=True) == ["global_step_5"]
