"""A step that lost too much stops the run, and says how much, to what, and what to do."""

import pytest

from agentrl.trajectory.drops import TooManyDrops, check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Finish, Outcome, Trajectory


def trajectories(*errors: str | None, finish: Finish = "error") -> list[Trajectory]:
    """One for each: None got through."""
    made = [Trajectory(Row(f"r{i}", []), f"1/r{i}/0", 0) for i in range(len(errors))]
    for trajectory, error in zip(made, errors, strict=True):
        if error is not None:
            trajectory.outcome, trajectory.error, trajectory.finish = Outcome.INFRA_ERROR, error, finish
    return made


@pytest.mark.prevents("a run trains for days on the few samples that a broken service leaves")
@pytest.mark.parametrize(
    ("lost", "total", "most", "stops"),
    [
        (0, 0, 0.5, False),
        (0, 8, 0.0, False),
        (1, 8, 0.0, True),
        (1, 2, 0.5, False),  # one of two may be bad luck
        (2, 3, 0.5, True),
        (4, 8, 0.5, False),
        (5, 8, 0.5, True),
        (1, 1, 1.0, True),
        (29, 100, 0.29, False),
        (7, 8, 1.0, False),
        (8, 8, 1.0, True),
    ],
)
def test_more_than_the_share_or_all(lost: int, total: int, most: float, stops: bool) -> None:
    made = trajectories(*["gone"] * lost, *[None] * (total - lost))
    if stops:
        with pytest.raises(TooManyDrops, match=f"took {lost} of {total} trajectories"):
            check_drops(made, most)
    else:
        check_drops(made, most)


def test_the_most_frequent_cause_is_told_whatever_numbers_it_holds() -> None:
    ports = [f"tool search: no answer from 10.0.0.{i}:{8000 + i} (0x7f{i}a)" for i in range(3)]
    with pytest.raises(TooManyDrops) as caught:
        check_drops(trajectories("disk full", "disk full", *ports, None), 0.25)
    assert str(caught.value) == (
        "infrastructure failures took 5 of 6 trajectories, more than rollout.max_infra_drop_share=0.25 allows; "
        "the most frequent cause (3 of 5): tool search: no answer from 10.0.0.0:8000 (0x7f0a); fix that"
    )


def test_a_cause_without_a_message() -> None:
    with pytest.raises(TooManyDrops, match=r"cause \(1 of 1\): it has no message; fix that"):
        check_drops(trajectories("", None), 0.25)


def test_the_fix_for_what_took_too_long() -> None:
    late = "took longer than rollout.trajectory_timeout=600 s"
    with pytest.raises(TooManyDrops, match=rf"cause \(2 of 2\): {late}; raise it, or limit turns and tokens$"):
        check_drops(trajectories(late, late, None, finish="timeout"), 0.5)
