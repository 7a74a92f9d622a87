"""`agentrl cluster check` on one machine, and on two made of namespaces."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import agentrl, command, environment
from tests.machines import Machine, machines, need_root
from tests.raylets import TOKEN, Cluster

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def two() -> Iterator[list[Machine]]:
    need_root()
    with machines(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def cluster(two: list[Machine], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = Cluster(tmp_path_factory.mktemp("nodes"), two)
    made.head()
    made.join()
    return made


def check(cluster: Cluster, folder: Path, *settings: str, **env: str) -> tuple[int, str]:
    """(exit code, output) of the command on the head."""
    words = [
        "trainer.device=cpu",
        f"trainer.default_local_dir={folder}",
        f"ray_init.address={cluster.address}",
        *settings,
    ]
    done = subprocess.run(
        cluster.machines[0].words(*command("cluster", "check", *words)),
        env=environment() | TOKEN | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def test_one_machine(tmp_path: Path) -> None:
    settings = ["trainer.device=cpu", "trainer.n_gpus_per_node=2", "ray_init.address=local", "ray_init.num_cpus=2"]
    said = agentrl("cluster", "check", *settings, f"trainer.default_local_dir={tmp_path / 'run'}").stdout
    assert "2 ranks sum 32 MiB" in said
    assert "0 warnings, 0 problems" in said
    assert not list((tmp_path / "run").iterdir())


def test_machines_that_fit(cluster: Cluster, tmp_path: Path) -> None:
    code, said = check(cluster, tmp_path, "trainer.nnodes=2")
    assert code == 0, said
    assert "2: 10.88.0.1, 10.88.0.2" in said
    assert "0 problems" in said
    assert not list(tmp_path.iterdir())


def test_another_folder_and_a_slow_link(cluster: Cluster, two: list[Machine], tmp_path: Path) -> None:
    two[1].sh(f"mount -t tmpfs none {tmp_path}")
    two[1].slow("100mbit")
    try:
        code, said = check(cluster, tmp_path)
    finally:
        two[1].sh(f"umount {tmp_path}; tc qdisc del dev eth0 root")
    assert code == 1, said
    assert "trainer.default_local_dir: another folder on 10.88.0.2, not shared" in said
    assert "10.88.0.2 to 10.88.0.1: 0.0" in said


def test_too_few_machines_and_a_wrong_token(cluster: Cluster, tmp_path: Path) -> None:
    code, said = check(cluster, tmp_path, "trainer.nnodes=3")
    assert code == 2, said
    assert "asks for 3 machines" in said
    code, said = check(cluster, tmp_path, RAY_AUTH_TOKEN="1" * 64)
    assert code == 2, said
    assert "the same ~/.ray/auth_token" in said
