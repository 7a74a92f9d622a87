"""A cluster made by `ray start`, of two nodes on this machine: a run over both, and one whose second node goes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.engines.servers.process import free_port
from tests.e2e.conftest import agentrl, command, environment
from tests.e2e.test_ray import REWARD
from tests.e2e.test_resume import figures, lines

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
"""All members of a cluster state it, and what joins them."""


class Cluster:
    """Nodes, every one a process of ours."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = folder
        self.nodes: list[subprocess.Popen[bytes]] = []

    def node(self, *where: str, cpus: int = 2, **env: str) -> "subprocess.Popen[bytes]":
        """Start one; what runs there has `env`."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}", *where]
        log = (self.folder / f"node-{len(self.nodes)}.log").open("wb")
        env = os.environ | TOKEN | {"RAY_worker_niceness": "0"} | env
        node = subprocess.Popen(ray, stdout=log, stderr=log, env=env, start_new_session=True)
        self.nodes.append(node)
        return node

    def wait(self) -> None:
        """Until the head can be spoken to."""
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            time.sleep(0.1)
        raise TimeoutError(self.address)

    def join(self, cpus: int = 2, **env: str) -> None:
        """Start a further node; returns when the cluster has it."""
        node = self.node(f"--address={self.address}", cpus=cpus, **env)
        log = self.folder / f"node-{len(self.nodes) - 1}.log"
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, log.read_text()
            time.sleep(0.1)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait(60)
        left = Path("/tmp/ray/ray_current_cluster")  # or whoever comes next looks for it in vain
        if left.exists() and left.read_text().endswith(self.address.partition(":")[2]):
            left.unlink()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.node("--head", f"--port={made.address.rpartition(':')[2]}", "--include-dashboard=false")
    made.wait()
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
