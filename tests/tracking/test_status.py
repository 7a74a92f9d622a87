"""The state of a run in its folder."""

import json

import pytest

from agentrl.core.stopping import Interrupted
from agentrl.tracking.status import STATUS_FILE, RunStatus, read_status


@pytest.mark.parametrize(
    ("error", "step", "state"),
    [
        (None, 4, "finished"),
        (None, 2, "stopped"),
        (None, None, "finished"),
        (Interrupted("resume with ..."), 2, "stopped"),
        (GeneratorExit(), 2, "stopped"),
        (RuntimeError("no memory\nfor that"), 2, "failed"),
    ],
)
def test_how_a_run_ended(tmp_path, error, step, state):
    status = RunStatus(tmp_path, 4)
    with status:
        assert read_status(tmp_path) == {"state": "running", "total_steps": 4, "error": ""}
        status.step = step
        status.__exit__(None, error, None)
        ended = read_status(tmp_path)
    reason = "RuntimeError: no memory" if state == "failed" else ""
    assert ended == {"state": state, "total_steps": 4, "error": reason}


def test_a_run_without_its_process_was_killed(tmp_path):
    with RunStatus(tmp_path, 4):
        file = tmp_path / STATUS_FILE
        note = json.loads(file.read_text())
        file.write_text(json.dumps(note | {"pid": 2**22 + 1}))
        assert read_status(tmp_path)["state"] == "killed"
        file.write_text(json.dumps(note | {"pid": 2**22 + 1, "host": "another"}))
        assert read_status(tmp_path)["state"] == "running"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": 1}', '{"state": "x", "total_steps": "many"}', "\xff"])
def test_no_status(tmp_path, text):
    assert read_status(tmp_path) == {}
    (tmp_path / STATUS_FILE).write_text(text, encoding="latin-1")
    assert read_status(tmp_path) == {}
