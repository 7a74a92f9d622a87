"""What a run leaves behind of its trajectories."""

import math
from threading import Event, Lock

import pytest
import torch

from agentrl.config import compose
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.tracking.run_tracker import RunTracker
from agentrl.training.batches.packing import advantages_by_key
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord, Trajectory
from agentrl.view.table import Table
from tests.training.tiny import packed


def ledger(model: int) -> Ledger:
    made = Ledger()
    made.append_prompt([1, 2])
    made.append_model([5] * model, [-0.5] * model, turn=0, version=0)
    made.append_observation([6], Source.TOOL, turn=0)
    return made


def trajectory(i: int, ledgers: list[Ledger], **fields: object) -> Trajectory:
    return Trajectory(Row(f"r:{i}", []), f"1/r:{i}/0", 0, ledgers=ledgers, turns=1, **{"reward": 1.0} | fields)


@pytest.fixture
def rolled() -> list[Trajectory]:
    """One that failed, one with two samples and one without a token of the model, one simple."""
    return [
        trajectory(0, [ledger(2)], outcome=Outcome.INFRA_ERROR, reward=None),
        trajectory(1, [ledger(3), ledger(0), ledger(1)]),
        trajectory(2, [ledger(2)]),
    ]


@pytest.fixture
def tracker(tmp_path):
    config = compose([f"trainer.default_local_dir={tmp_path}", "trainer.live=false"], checks=())
    return RunTracker(config, 1, 0, lambda ids: "x" * len(ids))


def written(tmp_path):
    records = load_trajectories(tmp_path / "rollouts/1.jsonl")
    return [[sample["columns"].get("advantages") for sample in record["samples"]] for record in records]


def test_advantages_are_written_with_what_was_packed(tracker, rolled, tmp_path):
    kept = rolled[::-1]  # a sampler may hand on others than were rolled, in another order
    batch = packed(*kept)
    batch.advantages = torch.arange(batch.num_tokens) * batch.mask.float()
    with tracker:
        tracker.record_rollouts(1, rolled)
        tracker.record_advantages(lambda: advantages_by_key(kept, batch))
        tracker.wait_for_dumps()
        assert written(tmp_path) == [
            [None],
            [[[2, 0.0], [1, 7.0], [1, 8.0], [1, 9.0], [1, 0.0]], None, [[2, 0.0], [1, 13.0], [1, 0.0]]],
            [[[2, 0.0], [1, 2.0], [1, 3.0], [1, 0.0]]],
        ]
        tracker.step(1, {"x": 1.0})
    assert "time/dump" in read_metrics(tmp_path / "metrics.jsonl")[0]


def die_in_a_step(tracker, rolled):
    with tracker:
        tracker.record_rollouts(1, rolled)
        raise MemoryError


def test_what_was_sampled_is_kept_when_the_step_fails(tracker, rolled, tmp_path):
    with pytest.raises(MemoryError):
        die_in_a_step(tracker, rolled)
    assert written(tmp_path) == [[None], [None, None, None], [None]]


def test_nothing_to_learn_is_written_at_the_end_of_the_step(tracker, rolled, tmp_path):
    with tracker:
        tracker.record_rollouts(1, rolled)
        tracker.step(1, {})
        tracker.wait_for_dumps()
        assert len(written(tmp_path)) == 3


@pytest.mark.parametrize(("resumed", "noted"), [(0, False), (2, False), (3, True)])
def test_a_run_says_where_it_goes_on_and_that_nothing_is_left(tmp_path, capfd, resumed, noted):
    config = compose([f"trainer.default_local_dir={tmp_path}", "trainer.live=false"], checks=())
    with RunTracker(config, 3, resumed, str):
        out = capfd.readouterr().out
        assert ("This run has finished: all 3 steps are taken" in out) is noted
        assert ("Resuming from step 2" in out) is (resumed == 2)


def test_the_rate_is_that_of_all_batches_a_step_sampled(tracker, rolled, tmp_path):
    with tracker:
        for _ in range(2):
            with tracker.rollout_phase("rollout", 1) as count:
                count(rolled[1])
        tracker.step(1, {})
    (metrics,) = read_metrics(tmp_path / "metrics.jsonl")
    assert metrics["perf/rollout_tokens_per_s"] * metrics["time/rollout"] == pytest.approx(2 * (3 + 0 + 1))


def test_the_run_does_not_wait_for_what_it_writes(tracker, rolled, tmp_path):
    going_on = Event()
    tracker._dumps.texts.decode = lambda ids: "x" * len(ids) if going_on.wait(60) else ""
    with tracker:
        tracker.record_rollouts(1, rolled)
        tracker.step(1, {})
        assert not (tmp_path / "rollouts/1.jsonl").exists()
        going_on.set()
        tracker.wait_for_dumps()
        assert len(written(tmp_path)) == 3


def test_a_dump_that_fails_costs_a_warning_and_is_counted(tracker, rolled, tmp_path, caplog, capsys):
    (tmp_path / "rollouts").write_text("in the way")
    with tracker:
        for step in (1, 2, 3):
            tracker.record_rollouts(step, rolled)
            tracker.step(step, {})
            tracker.wait_for_dumps()
        tracker.step(4, {})
    warnings = [record for record in caplog.records if "cannot be written" in record.message]
    assert len(warnings) == 1
    assert "1.jsonl cannot be written" in warnings[0].message
    assert "free the disk" in warnings[0].message
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["perf/dumps_failed"] == 3
    assert "3 dumps could not be written" in capsys.readouterr().out


class Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


def test_whatever_a_trajectory_holds_is_written(tracker, tmp_path):
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    ring: dict = {"a": 1}
    ring["self"] = ring
    odd = {"half": "\ud83d", "long": 10**5000, "deep": deep, "ring": ring, "nan": math.nan, (1, "\ud83d"): {1}}
    call = ToolCallRecord(0, "f\udc80", odd, "said \ud83d \0", Outcome.OK, 0.1)
    bad = trajectory(0, [ledger(2)], extra={"x": Unwritable(), "y": Lock()}, tool_calls=[call], error="\ud83d")
    with tracker:
        tracker.record_rollouts(1, [bad, trajectory(1, [ledger(2)])])
        tracker.step(1, {})
        tracker.wait_for_dumps()
    one, two = load_trajectories(tmp_path / "rollouts/1.jsonl")
    assert "perf/dumps_failed" not in read_metrics(tmp_path / "metrics.jsonl")[0]
    assert one["tool_calls"][0]["arguments"]["half"] == "\ufffd"
    assert one["tool_calls"][0]["arguments"]["nan"] is None
    assert one["extra"]["x"] == "<Unwritable>"
    assert two["key"] == "1/r:1/0"
    assert [row["calls"] for row in Table(lambda: {1: tmp_path / "rollouts/1.jsonl"}).rows({})] == [1, 0]


def test_what_ended_the_run_is_told_though_a_dump_failed_besides(tracker, rolled, tmp_path, capsys):
    (tmp_path / "rollouts").write_text("in the way")

    with pytest.raises(MemoryError):
        die_in_a_step(tracker, rolled)
    assert "1.jsonl cannot be written" in capsys.readouterr().out


def test_work_beside_the_step_comes_before_what_is_written(tracker, rolled, tmp_path):
    may_end = Event()

    def work():
        assert may_end.wait(30)
        rolled[0].extra["found"] = "late"

    with tracker:
        tracker.in_background(work)
        tracker.record_rollouts(1, rolled)
        tracker.record_advantages(dict)
        may_end.set()
        tracker.wait_for_background()
        assert rolled[0].extra == {"found": "late"}
        tracker.wait_for_dumps()
    assert load_trajectories(tmp_path / "rollouts/1.jsonl")[0]["extra"] == {"found": "late"}


def test_an_error_beside_the_step_ends_it_and_is_not_lost_with_the_dump(tracker, rolled, tmp_path):
    def fail():
        raise ValueError("a template")

    with tracker:
        tracker.in_background(fail)
        tracker.record_rollouts(1, rolled)
        tracker.record_advantages(dict)
        with pytest.raises(ValueError, match="a template"):
            tracker.wait_for_background()
    assert len(load_trajectories(tmp_path / "rollouts/1.jsonl")) == 3
