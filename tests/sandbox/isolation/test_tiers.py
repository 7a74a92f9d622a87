"""What the tiers decide by themselves; what they hold is tried in tests/sandbox/attacks."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from agentrl_sandbox.isolation import TIERS, Host, load
from agentrl_sandbox.isolation.bwrap import Bwrap
from agentrl_sandbox.isolation.landlock import _as_the_same_user
from agentrl_sandbox.kernel import profiles

pytestmark = pytest.mark.integration

SANDBOX = str(Path(__file__).parents[3] / "sandbox")


@pytest.mark.parametrize("name", TIERS)
def test_every_tier_loads_under_its_name(name: str) -> None:
    assert load(name).name == name


@pytest.mark.parametrize(("abi", "words"), [(0, "no Landlock"), (2, "Landlock ABI 2")])
def test_landlock_too_old_for_the_servers_own_user(abi: int, words: str) -> None:
    with pytest.raises(OSError, match=words):
        _as_the_same_user(abi)


@pytest.mark.parametrize(("abi", "signals"), [(3, False), (5, False), (6, True), (7, True)])
def test_signals_where_landlock_does_not_keep_them_inside(abi: int, signals: bool) -> None:
    rules = _as_the_same_user(abi).rules
    assert set(profiles.SHARED_USER) <= set(rules)
    assert set(profiles.NO_SIGNALS).isdisjoint(rules) == signals


def test_programs_run_without_signals_and_modes(tmp_path: Path) -> None:
    script = """
        import errno, os, shutil, signal, subprocess
        from agentrl_sandbox.kernel import profiles, seccomp
        open("a", "w").close()
        seccomp.install(seccomp.program(profiles.LANDLOCK + profiles.SHARED_USER + profiles.NO_SIGNALS))
        shutil.copy2("a", "b")
        os.chmod("b", 0o777)
        try: os.kill(os.getpid(), signal.SIGTERM)
        except PermissionError: print("no signals")
        print(oct(os.stat("b").st_mode & 0o777), subprocess.run(["cat", "b"]).returncode)
    """
    command = [sys.executable, "-c", "import os; os.umask(0o22)\n" + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": SANDBOX})
    assert (done.stdout, done.stderr) == ("no signals\n0o644 0\n", "")


@pytest.mark.parametrize(
    ("told", "meant"), [(0, 0), (1, 1), (128, 128), (139, -11), (137, -9), (192, -64), (193, 193), (255, 255)]
)
def test_the_exit_code_of_bwrap_after_a_signal(told: int, meant: int) -> None:
    assert Bwrap().exit_code(told) == meant


def test_without_bwrap_there_is_no_such_tier(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # settle changes the process it is called in
        try:
            Bwrap().prepare_zygote(Host((), 1, None, str(tmp_path)))
        except FileNotFoundError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


BOMB = """
import os, signal, sys, time
from agentrl_sandbox.isolation import kill_descendants
from agentrl_sandbox.kernel import syscalls

syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
start = time.monotonic()
if os.fork() == 0:
    os.setsid()
    while time.monotonic() < start + 60:  # each generation ends its parent, and ignores what can be ignored
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            if os.fork(): os._exit(0)
            time.sleep(0.01)
            os._exit(0)
    os._exit(0)
time.sleep(0.3)
kill_descendants()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody is left")
"""


def test_kill_descendants_ends_processes_that_replace_themselves() -> None:
    begin = time.monotonic()
    environment = {"PYTHONPATH": SANDBOX, "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("nobody is left\n", 0), done.stderr
    assert time.monotonic() - begin < 60
