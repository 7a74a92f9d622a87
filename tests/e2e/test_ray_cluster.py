"""A cluster made by `ray start`, of two nodes on this machine: a run over both, and one whose second node goes."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import agentrl, command, environment
from tests.e2e.test_ray import REWARD
from tests.e2e.test_resume import figures, lines
from tests.raylets import TOKEN, Cluster

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.head()
    yield made
    made.close()


@pytest.fixture
def cluster(head: Cluster) -> Cluster:
    head.join()
    return head


def test_a_node_goes_and_another_comes(cluster: Cluster, tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    reward = "reward.custom_reward_function"
    overrides = [*overrides, f"{reward}.path={tmp_path / 'reward.py'}", f"{reward}.name=compute_score"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    agentrl("train", *overrides, f"trainer.default_local_dir={whole}")
    two = ["trainer.device=cpu", "trainer.nnodes=2", f"ray_init.address={cluster.address}"]
    process = subprocess.Popen(
        command("train", *overrides, *two, f"trainer.default_local_dir={broken}"),
        env=environment() | TOKEN,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while lines(broken) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(cluster.nodes[1].pid, signal.SIGKILL)  # as a machine that loses its power
    cluster.node(f"--address={cluster.address}")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "the run resumes by itself (restart 1 of 3)" in said
    expected, mine = figures(whole), figures(broken)
    assert len(mine) == len(expected)
    for step, other in zip(mine, expected, strict=True):
        assert step == pytest.approx(other, rel=1e-3, abs=1e-5)
