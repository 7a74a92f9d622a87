"""Commands that run a model on a CPU leave cores alone that other programs use."""

from collections.abc import Iterator

import pytest
import torch

from agentrl.cli.common import use_idle_cores
from agentrl.config.schema import Rollout, Trainer
from agentrl.core.cpu_cores import Host, threads_of_rank


@pytest.fixture(autouse=True)
def two_of_four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Host, "idle", lambda self: 2)
    monkeypatch.setattr(Host, "allowed", lambda self: 4)
    yield
    torch.set_num_threads(threads)


def test_it_takes_the_idle_ones_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    use_idle_cores(Trainer(device="cpu"), Rollout())
    assert torch.get_num_threads() == 2
    said = capsys.readouterr().err
    assert "2 of 4 CPU cores" in said
    assert "OMP_NUM_THREADS=4" in said


def test_nothing_is_said_where_all_are_idle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "idle", lambda self: 4)
    use_idle_cores(Trainer(device="cpu"))
    assert (torch.get_num_threads(), capsys.readouterr().err) == (4, "")


@pytest.mark.parametrize(
    ("trainer", "rollout"),
    [
        (Trainer(device="cuda"), Rollout()),
        (Trainer(device="cpu", n_gpus_per_node=2), Rollout()),
        (Trainer(device="cpu"), Rollout(nnodes=1)),
        (Trainer(device="cpu"), Rollout(deterministic=True)),
    ],
)
def test_others_are_left_as_they_are(trainer: Trainer, rollout: Rollout) -> None:
    use_idle_cores(trainer, rollout)
    assert torch.get_num_threads() == 4


def test_a_number_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    use_idle_cores(Trainer(device="cpu"))
    assert torch.get_num_threads() == 4
    assert threads_of_rank(2) == 4


def test_ranks_share_the_idle_cores_out() -> None:
    assert [threads_of_rank(ranks) for ranks in (1, 2, 3)] == [2, 1, 1]
    assert threads_of_rank(2, steady=True) == 2  # the same number in each run, busy machine or not
