"""Validation sets: rows, sampling and rhythm of each, at once or while the policy trains."""

from contextlib import contextmanager

import pytest

from agentrl.config import compose
from agentrl.config.checks.fit import val_sets
from agentrl.config.checks.ranges import ranges
from agentrl.config.schema.data import ValSet
from agentrl.core.errors import UserError
from agentrl.data.splits import Reader, ValRows
from agentrl.rollout.sampler import Validation
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

ROW = '{"prompt": [{"role": "user", "content": "hi"}], "data_source": "s"}\n'


class Quiet:
    """A tracker that keeps what is recorded."""

    def __init__(self):
        self.recorded = []

    @contextmanager
    def rollout_phase(self, name, total):
        yield lambda trajectory: None

    def record_validation(self, step, trajectories):
        self.recorded.append((step, [trajectory.key for trajectory in trajectories]))


class Future:
    finished = False

    def __init__(self, made):
        self.made = made

    def done(self):
        return self.finished


class Scripted:
    """Rollouts whose first sample of each row passes."""

    def __init__(self, background=None):
        self.background, self.futures = background, []

    def validate(self, rows, step, on_done, settings):
        keys = [(row, f"val-{step}/{row.uid}/{i}", i) for row in rows for i in range(settings.n)]
        return [Trajectory(*key, reward=float(key[2] == 0)) for key in keys]

    def begin_validation(self, rows, step, settings):
        self.futures.append(Future(self.validate(rows, step, None, settings)))
        return self.futures[-1]

    def wait(self, future, poll):
        return future.made


def val_rows(name, n=1, test_freq=None):
    rows = [Row(f"{name}{i}", [], data_source="s") for i in range(2)]
    return ValRows(name, ValSet(n=n, test_freq=test_freq), rows, [rows])


def validation(background=None):
    sets = [val_rows(""), val_rows("hard", n=2, test_freq=2)]
    return Validation(Scripted(background), Quiet(), sets, test_freq=3)


def test_each_set_has_its_rhythm_and_a_named_one_its_intervals():
    validate = validation()
    assert validate(1, every=False) == {}
    assert validate.tracker.recorded == []
    found = validate(2, every=False)
    assert found["val/hard/pass_at_1"] == 0.5
    assert found["val/hard/pass_at_2"] == found["val/hard/pass_at_2_low"] == 1.0
    assert found["val/hard/step"] == 2.0
    assert "val/reward_mean" not in found
    assert set(validate(3, every=False)) >= {"val/reward_mean", "val/s/reward_mean"}
    assert {"val/reward_mean", "val/hard/reward_mean"} <= set(validate(4))


def test_a_named_set_is_scored_while_the_policy_trains():
    validate = validation(background=object())
    assert validate(2, every=False) == {}
    assert validate(4, every=False) == {}  # it is under way still, and is not begun again
    assert len(validate.rollouts.futures) == 1
    validate.rollouts.futures[0].finished = True
    found = validate(5, every=False)
    assert found["val/hard/step"] == 2.0
    assert validate.tracker.recorded == [(5, [f"val-2/hard{i}/{n}" for i in range(2) for n in range(2)])]
    validate(6, every=False)
    assert validate(7)["val/hard/step"] == 7.0  # at the end nothing is under way
    assert validate.begun == {}


def test_a_set_has_its_own_rows_agent_and_sampling(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(2 * ROW)
    text = f"data.val_sets={{few: {{files: {file}, max_samples: 1, agent: mine, top_p: 0.5}}, all: {{files: {file}}}}}"
    config = compose([text], checks=())
    few, every = Reader(config, None, lambda row: 1).validation()
    assert [(row.uid, row.agent_name) for batch in few.batches for row in batch] == [("few:rows.jsonl:1", "mine")]
    assert [row.uid for row in every.rows] == ["all:rows.jsonl:1", "all:rows.jsonl:2"]
    assert (few.settings.top_p, every.settings.n) == (0.5, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{a: {n: 2}}", "data.val_sets.a: set files to its rows"),
        ("{a/b: {files: x.jsonl}}", "data.val_sets.a/b: set files to its rows; its name has no slash"),
        ("{a: {files: x.jsonl, n: 0}}", "data.val_sets.a.n=0: must be at least 1"),
        ("{a: {files: x.jsonl, max_tokens: 0}}", "data.val_sets.a.max_tokens=0: must be at least 1"),
        ("{a: {files: x.jsonl, top_p: 2.0}}", "data.val_sets.a.top_p=2.0: must be over 0 and at most 1"),
    ],
)
def test_a_mistake_names_the_set(text, line):
    with pytest.raises(UserError) as caught:
        compose([f"data.val_sets={text}"], checks=(ranges, val_sets))
    assert str(caught.value).startswith(line)


def test_a_set_and_a_data_source_do_not_share_their_metrics(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "data_source": "math"}')
    config = compose([f"data.val_files={file}", f"data.val_sets={{math: {{files: {file}}}}}"], checks=())
    with pytest.raises(UserError, match=r"^data.val_sets.math: rows of data.val_files have this data_source"):
        Reader(config, None, lambda row: 1).validation()


def test_greedy_answers_of_a_set_are_noted():
    config = compose(["data.val_sets={a: {files: x.jsonl, n: 2}}"], checks=())
    assert "data.val_sets.a.n=2: greedy answers" in val_sets(config.data)
