"""What a new branch of a run takes out of its way, and what it leaves alone."""

from collections.abc import Sequence
from pathlib import Path

from agentrl.tracking.generations import Generation
from agentrl.tracking.services.service import RunInfo, Service
from agentrl.tracking.superseded import superseded_records


def test_later_dumps_and_the_memory_of_services(tmp_path: Path) -> None:
    run, shared = tmp_path / "run", tmp_path / "shared"
    for folder in (run / "rollouts", run / "validation", shared):
        folder.mkdir(parents=True)
        for name in ("0.jsonl", "2.jsonl", ".2.jsonl.index", "10.jsonl", ".10.jsonl.index", "notes.jsonl", "11.txt"):
            (folder / name).touch()
    (run / ".wandb.json").touch()
    dumps = [str(run / "rollouts"), None, str(run / "rollouts" / ".." / "validation"), str(shared)]
    moves, copies = superseded_records(run, 2, dumps)
    assert sorted(moves.values()) == [
        ".wandb.json",
        "rollouts/.10.jsonl.index",
        "rollouts/10.jsonl",
        "validation/.10.jsonl.index",
        "validation/10.jsonl",
    ]
    assert copies == [run / "metrics.jsonl", run / "config.yaml", run / "record.json"]
    assert all(path.exists() for path in moves)


def test_a_run_that_starts_over_leaves_everything_behind(tmp_path: Path) -> None:
    dumps = tmp_path / "validation"
    (tmp_path / "config.yaml").touch()
    (tmp_path / "metrics.jsonl").touch()
    assert superseded_records(tmp_path, 0, [str(dumps)]) == ({}, [])  # that one took no step
    dumps.mkdir()
    (dumps / "0.jsonl").touch()
    (tmp_path / "tensorboard").mkdir()
    moves, copies = superseded_records(tmp_path, 0, [str(dumps)])
    assert sorted(moves.values()) == ["config.yaml", "metrics.jsonl", "tensorboard", "validation/0.jsonl"]
    assert copies == []


class Listening(Service):
    """Remembers in a list."""

    name, package, fix = "wandb", "json", ""

    def begin(self, info: RunInfo) -> None:
        self.got: list[int] = []

    def send(self, step: int, metrics: dict[str, float]) -> None:
        self.got.append(step)

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        """None comes."""

    def close(self) -> None:
        """Nothing to do."""


def test_a_service_hears_of_the_new_branch(tmp_path: Path) -> None:
    """It skips steps that it has heard of; those of a new branch are others, in a run of their own."""

    def life(steps: Sequence[int], *, resume: bool) -> Listening:
        service = Listening(RunInfo("p", "e", tmp_path, resume_step=int(resume)))
        for step in steps:
            service.log(step, {"rollout/success": 1.0})
        return service

    old = life([1, 2, 3], resume=False)
    again = life([3, 4], resume=True)
    assert (again.id, again.got) == (old.id, [4])  # the same steps once more
    moves, _ = superseded_records(tmp_path, 1)
    for file, name in moves.items():
        file.rename(tmp_path / f"aside{name}")
    new = life([2, 3], resume=True)
    assert new.got == [2, 3]
    assert new.id != old.id
