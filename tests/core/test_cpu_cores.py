"""How many cores a process takes, and how its threads wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.core import cpu_cores as cores
from agentrl.core.cpu_cores import SPINS, Host, wait_passively

pytestmark = pytest.mark.integration

OTHERS_COLUMNS = "0 0 0 0 0"


def stat(busy: list[int], idle: list[int]) -> str:
    """A reading of /proc/stat: ticks since the start of each core."""
    each = [
        f"cpu{core} {used} 0 0 {free} {OTHERS_COLUMNS}"
        for core, (used, free) in enumerate(zip(busy, idle, strict=True))
    ]
    return "\n".join(["cpu  1 2 3 4 5 6 7", *each, "intr 5 6", "ctxt 99"])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "stat").write_text(stat([0] * 4, [0] * 4))
    (tmp_path / "member").write_text("1:cpu:/\n0::/user/run\n")
    (tmp_path / "cgroup/user/run").mkdir(parents=True)
    return Host(tmp_path / "stat", tmp_path / "member", tmp_path / "cgroup")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "affinity", lambda: {0, 1, 2, 3})


def watched(host: Host, monkeypatch: pytest.MonkeyPatch, busy: list[int], idle: list[int]) -> int:
    """What it finds where so many ticks went by while it watched."""
    monkeypatch.setattr(cores.time, "sleep", lambda _: host.stat.write_text(stat(busy, idle)))
    return host.idle()


@pytest.mark.prevents(
    "a run on a busy machine is many times slower: OpenMP threads spin while one thread waits for its core"
)
@pytest.mark.parametrize(
    ("busy", "idle", "threads"),
    [
        ([0, 0, 0, 0], [20, 20, 20, 20], 4),
        ([2, 2, 0, 1], [18, 18, 20, 19], 4),  # a browser is no reason
        ([20, 0, 0, 0], [0, 20, 20, 20], 3),
        ([10, 10, 0, 0], [10, 10, 20, 20], 3),  # one process that moves
        ([20, 20, 20, 20], [0, 0, 0, 0], 2),  # this process's share
        ([0, 0, 0, 0], [0, 0, 0, 0], 4),  # no tick went by
    ],
)
def test_threads_are_as_many_as_cores_are_idle(host, monkeypatch, busy, idle, threads) -> None:
    assert watched(host, monkeypatch, busy, idle) == threads


def test_cores_of_other_affinities_do_not_count(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "affinity", lambda: {2, 3})
    assert watched(host, monkeypatch, [20, 20, 0, 0], [0, 0, 20, 20]) == 2


@pytest.mark.parametrize(
    ("quotas", "allowed"),
    [
        ({}, 4),
        ({"user/run": "max 100000"}, 4),
        ({"user/run": "250000 100000"}, 2),
        ({"user": "100000 100000", "user/run": "max 100000"}, 1),
        ({"": "50000 100000"}, 1),
        ({"user/run": "not a quota"}, 4),
    ],
)
def test_a_quota_of_any_cgroup_around_it_counts(host: Host, quotas: dict[str, str], allowed: int) -> None:
    for folder, quota in quotas.items():
        (host.cgroups / folder / "cpu.max").write_text(quota)
    assert host.allowed() == allowed


def test_without_proc_the_load_says_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.stat.unlink()
    host.member.unlink()
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 0.0, 0.0))
    assert host.idle() == 3


def test_this_machine_has_cores_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= Host().idle(0.01) <= Host().allowed() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_wait_as_the_user_says(name: str) -> None:
    mine = {name: "x"}
    wait_passively(mine)
    assert mine == {name: "x"}


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP library")
def test_the_command_line_has_threads_sleep_before_openmp_is_loaded() -> None:
    program = "from agentrl.cli.main import main; main(['--version']); import torch"
    unset = {name: value for name, value in os.environ.items() if name not in cores.CHOSEN}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=unset | {"OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in done.stderr
