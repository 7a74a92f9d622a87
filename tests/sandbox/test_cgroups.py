# ruff: noqa: ASYNC240 - files of the kernel
"""Control groups: where they may be, what counts, and that none is left."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl_sandbox import cgroups
from agentrl_sandbox.cgroups import ONE, TWO, Cgroups, candidates
from agentrl_sandbox.kernel.cgroup import Cgroup
from agentrl_sandbox.pool import Pool

pytestmark = pytest.mark.integration

LINE = "31 23 0:28 {root} {point} rw,nosuid - {kind} {kind} rw{options}\n"


def host(tmp_path: Path, own: str, *mounts: tuple[str, str, str]) -> list[tuple[int, str]]:
    """The places on a host with this /proc/self/cgroup and these mounts: (root, kind, options), each in a folder."""
    text = ""
    for root, kind, options in mounts:
        text += LINE.format(root=root, point=tmp_path / kind, kind=kind, options=options)
    (tmp_path / "mountinfo").write_text(text)
    (tmp_path / "own").write_text(own)
    found = candidates(str(tmp_path / "mountinfo"), str(tmp_path / "own"))
    return [(kind.version, str(path.relative_to(tmp_path))) for kind, path in found]


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_version_two_under_systemd(tmp_path: Path) -> None:
    """Its own group has processes; the one beside it is as good, for this one has no limit to evade."""
    group(tmp_path / "cgroup2/user.slice/run.scope", cgroup_controllers="memory pids\n", memory_max="max\n")
    found = host(tmp_path, "0::/user.slice/run.scope\n", ("/", "cgroup2", ""))
    assert found == [(2, "cgroup2/user.slice/run.scope"), (2, "cgroup2/user.slice")]


def test_version_two_with_a_limit_of_its_own(tmp_path: Path) -> None:
    group(tmp_path / "cgroup2/job", cgroup_controllers="memory\n", memory_max="1048576\n")
    assert host(tmp_path, "0::/job\n", ("/", "cgroup2", "")) == [(2, "cgroup2/job")]


def test_version_two_in_a_container(tmp_path: Path) -> None:
    """By a cgroup namespace the container's own group is the root; or the mount shows only a part."""
    group(tmp_path / "cgroup2", cgroup_controllers="memory\n", memory_max="max\n")
    assert host(tmp_path, "0::/\n", ("/", "cgroup2", "")) == [(2, "cgroup2")]
    assert host(tmp_path, "0::/docker/ab\n", ("/docker/ab", "cgroup2", "")) == [(2, "cgroup2")]
    assert host(tmp_path, "0::/\n", ("/../..", "cgroup2", "")) == [(2, "cgroup2")]


def test_version_one_beside_a_version_two_that_counts_no_memory(tmp_path: Path) -> None:
    group(tmp_path / "cgroup2", cgroup_controllers="hugetlb\n")
    own = "8:pids:/\n4:memory:/job/a:b\n0::/\n"
    assert host(tmp_path, own, ("/", "cgroup2", ""), ("/", "cgroup", ",memory")) == [(1, "cgroup/job/a:b")]
    assert host(tmp_path, own, ("/", "cgroup2", ""), ("/", "cgroup", ",pids")) == []


@pytest.mark.parametrize(
    ("stat", "counters", "used"),
    [
        ("anon 5\ninactive_file 10\nactive_file 20\nslab_reclaimable 5\nslab 7\n", (1000, 50), 1015),
        ("inactive_file 1\nactive_file 2\ntotal_inactive_file 10\ntotal_active_file 20\n", (1000,), 970),
    ],
    ids=["version 2", "version 1"],
)
def test_what_a_group_counts(tmp_path: Path, stat: str, counters: tuple[int, ...], used: int) -> None:
    """All but the host's files; the sums where there are any; and what was there before."""
    files = [tmp_path / name for name in ("procs", "stat", *map(str, range(len(counters))))]
    for file, text in zip(files, ("", "", *("0\n" for _ in counters)), strict=True):
        file.write_text(text)
    one = Cgroup([os.open(file, os.O_RDWR) for file in files])
    one.enter()
    one.begin()
    files[1].write_text(stat)
    for file, count in zip(files[2:], counters, strict=True):
        file.write_text(f"{count}\n")
    assert (files[0].read_text(), one.used()) == ("0", used)
    one.begin()
    assert one.used() == 0
    for handle in (one.stat, *one.counters):
        os.close(handle)


def test_a_host_without_groups_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "candidates", lambda: iter(()))
    assert Cgroups("namespace").why == "no control group counts memory on this host"
    (tmp_path / "file").touch()
    monkeypatch.setattr(cgroups, "candidates", lambda: iter([(TWO, tmp_path), (ONE, tmp_path / "file")]))
    none = Cgroups("namespace")
    assert none.why == f"no control group can be used in {tmp_path / 'file'} (Not a directory)"
    assert none.open(0) == []
    none.close()
    assert "landlock" in Cgroups("landlock").why


@pytest.fixture(scope="module")
def parent() -> Path:
    """Where this host allows for groups."""
    one = Cgroups("namespace")
    if one.home is None:
        pytest.skip(one.why)
    home = one.home
    one.close()
    assert not home.exists()
    return home.parent


def _is_ours(group: Path) -> bool:
    """Whether a process in the group descends from this one."""
    with suppress(OSError):  # a group or a process of others ends at any time
        for pid in (group / "cgroup.procs").read_text().split():
            while int(pid) > 1:
                if int(pid) == os.getpid():
                    return True
                pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return False


async def test_a_pool_leaves_none(parent: Path) -> None:
    before = set(parent.glob("agentrl-sandbox-*/0"))
    pool = Pool(slots=1, isolation="namespace")
    await pool.start()
    new = set(parent.glob("agentrl-sandbox-*/0")) - before
    own = {group for group in new if _is_ours(group)}
    assert own  # other test processes may have started pools of their own meanwhile
    assert pool.memory() == "all memory of a run counts, by a control group"
    await pool.close()
    assert not any(group.exists() for group in own)


def test_what_a_killed_supervisor_left_is_removed(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Cgroups("namespace")
    assert one.home is not None
    for handle in one.open(3):
        os.close(handle)
    monkeypatch.setattr(cgroups, "_OLD", 0)
    Cgroups("namespace").close()
    assert one.home.exists()  # somebody needs it
    os.close(one.lock)
    time.sleep(0.01)
    Cgroups("namespace").close()
    assert not one.home.exists()
