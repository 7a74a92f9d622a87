"""A run that lost a worker restarts from its own newest checkpoint, a limited number of times."""

import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Config, Rollout, Trainer
from agentrl.config.schema.sft import SftConfig
from agentrl.runtime.opening import processes
from agentrl.runtime.ray.failures import plain_error
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.restarts import PassTooLarge, WorkerDied, run_with_restarts
from agentrl.training.checkpoint.resuming import Resuming


def config(folder: Path, **trainer) -> Config:
    return Config(trainer=Trainer(default_local_dir=str(folder), **trainer))


class Run:
    """Dies so many times, each time after a step was saved, or before the folder is its own."""

    def __init__(self, deaths: int, *, claims: bool = True) -> None:
        self.deaths, self.claims = deaths, claims
        self.seen: list[tuple[str, str | None]] = []

    def __call__(self, config: Config) -> None:
        trainer = config.trainer
        self.seen.append((trainer.resume_mode, trainer.resume_from_path))
        if len(self.seen) <= self.deaths:
            folder = Path(trainer.default_local_dir) / "checkpoints"
            if self.claims:
                Resuming(folder, trainer.resume_mode, trainer.resume_from_path).claim(len(self.seen) - 1)
                (folder / f"global_step_{len(self.seen)}").mkdir(parents=True)
            raise WorkerDied("rank 1 died")


def test_restarts_from_the_newest_checkpoint(tmp_path: Path) -> None:
    run = Run(deaths=2)
    run_with_restarts(run, config(tmp_path), tmp_path / "checkpoints")
    assert run.seen == [("auto", None)] * 3


def test_restarts_from_its_own_checkpoints_only(tmp_path: Path) -> None:
    """However new the old run's are, and whatever the clocks of the machines say."""
    folder = tmp_path / "checkpoints"
    (folder / "global_step_9").mkdir(parents=True)
    os.utime(folder / "global_step_9", (2**33, 2**33))
    run = Run(deaths=2)
    run_with_restarts(run, config(tmp_path, resume_mode="disable"), folder)
    assert run.seen == [("disable", None), ("auto", None), ("auto", None)]
    assert latest(folder) == folder / "global_step_2"


def test_a_run_that_died_before_the_folder_was_its_own_begins_as_it_began(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/global_step_9").mkdir(parents=True)
    run = Run(deaths=2, claims=False)
    run_with_restarts(run, config(tmp_path, resume_mode="disable"), tmp_path / "checkpoints")
    assert run.seen == [("disable", None)] * 3


def test_gives_up(tmp_path: Path) -> None:
    run = Run(deaths=5)
    with pytest.raises(WorkerDied):
        run_with_restarts(run, config(tmp_path, max_restarts=2), tmp_path / "checkpoints")
    assert len(run.seen) == 3


@pytest.mark.parametrize("kind", [Config, SftConfig])
def test_passes_that_do_not_fit_are_smaller_after_the_restart(kind: type, tmp_path: Path, caplog) -> None:
    """A rank without memory cannot take its pass again: the others wait within it."""
    seen = []

    def run(config: Any) -> None:
        sft = isinstance(config, SftConfig)
        seen.append(config.trainer.max_token_len_per_gpu if sft else config.actor.ppo_max_token_len_per_gpu)
        if len(seen) == 3:
            raise WorkerDied("another death")
        if len(seen) < 3:
            raise plain_error(PassTooLarge("a pass does not fit", 4096 // len(seen)), "rank 1")

    run_with_restarts(run, kind(), tmp_path / "checkpoints")
    assert seen == [None, 4096, 2048, 2048]
    assert "a pass does not fit; the run resumes by itself\n" in caplog.text, "each is smaller: it counts for nothing"
    assert "another death; the run resumes by itself (restart 1 of 3)" in caplog.text
    assert "passes have at most 4096 tokens from now on" in caplog.text


def test_processes_are_counted() -> None:
    assert processes(Trainer(), Rollout()) == 1
    assert processes(Trainer(nnodes=2, n_gpus_per_node=8), Rollout()) == 16
    assert processes(Trainer(nnodes=2, n_gpus_per_node=8), Rollout(nnodes=1)) == 24
    assert processes(Trainer(), Rollout(nnodes=2, n_gpus_per_node=4)) == 9
