"""Profiles: of the steps and on the ranks that were asked for, and of nothing else."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import Profiler
from agentrl.core.errors import UserError
from agentrl.training.perf.profiling import Profiling


def run(profiling: Profiling, steps: int = 3) -> None:
    for step in range(1, steps + 1):
        with profiling.phase(step, "logprobs"):
            torch.ones(3) @ torch.ones(3)
        with profiling.phase(step, "update", last=True):
            torch.ones(4).exp()


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*")}


def events(file: Path) -> set[str]:
    return {event["name"] for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]}


def test_one_trace_of_a_step_has_all_its_phases(tmp_path: Path) -> None:
    run(Profiling(Profiler(), [2], tmp_path, rank=0))
    assert names(tmp_path) == {"step2-rank0.json.gz"}
    assert {"logprobs", "update", "aten::exp"} <= events(tmp_path / "step2-rank0.json.gz")


def test_discrete_is_a_trace_for_each_phase(tmp_path: Path) -> None:
    run(Profiling(Profiler(discrete=True), [1], tmp_path, rank=0))
    assert names(tmp_path) == {"step1-rank0-logprobs.json.gz", "step1-rank0-update.json.gz"}
    assert "aten::exp" not in events(tmp_path / "step1-rank0-logprobs.json.gz")


def test_which_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        run(Profiling(Profiler(ranks=[1]), [1], tmp_path / "one", rank))
        run(Profiling(Profiler(all_ranks=True), [1], tmp_path / "all", rank))
        run(Profiling(Profiler(all_ranks=True), None, tmp_path / "none", rank))
    assert names(tmp_path / "one") == {"step1-rank1.json.gz"}
    assert len(names(tmp_path / "all")) == 3
    assert not (tmp_path / "none").exists()


def test_nsys_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="set actor.profiler.tool=torch"):
        Profiling(Profiler(tool="nsys"), [1], tmp_path, 0)
    Profiling(Profiler(tool="nsys"), None, tmp_path, 0)


def test_a_memory_snapshot_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    recording: list[object] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled="all": recording.append(enabled))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: Path(file).write_text(str(recording)))
    run(Profiling(Profiler(tool="torch_memory"), [2], tmp_path, rank=0))
    assert (tmp_path / "step2-rank0.pickle").read_text() == "['all']"
    assert recording == ["all", None]


def test_without_a_gpu_there_is_one_line_and_no_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run(Profiling(Profiler(tool="torch_memory"), [2], tmp_path / "none", rank=0))
    assert not (tmp_path / "none").exists()
    assert [record.getMessage() for record in caplog.records] == [
        "actor.profiler.tool=torch_memory records GPU memory, and there is no GPU: no snapshot is written"
    ]
