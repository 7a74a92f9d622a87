"""Landlock, asked by real processes that live under it."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentrl_sandbox.kernel import landlock

pytestmark = [pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock"), pytest.mark.integration]
PREAMBLE = """
    import os, signal, socket, sys
    from agentrl_sandbox.kernel import landlock
    def attempt(act, *arguments):
        try: act(*arguments)
        except OSError as error: return type(error).__name__
        return "done"
"""


def run(script: str, *arguments: object) -> str:
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def test_only_granted_paths(tmp_path: Path) -> None:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    script = """
        folder = sys.argv[1]
        landlock.restrict([f"{folder}/read", "/missing"], [f"{folder}/write", "/dev/null"])
        for name in ("read", "write", "other"):
            print(attempt(open, f"{folder}/{name}/file"), attempt(open, f"{folder}/{name}/file", "w"),
                  attempt(open, f"{folder}/{name}/new", "w"), attempt(os.listdir, f"{folder}/{name}"))
        device = attempt(os.mknod, f"{folder}/write/device", 0o20666, 259)
        print(attempt(open, "/dev/null", "w"), attempt(open, "/etc/passwd"), device)
    """
    assert run(script, tmp_path).splitlines() == [
        "done PermissionError PermissionError done",
        "done done done done",
        "PermissionError PermissionError PermissionError PermissionError",
        "done PermissionError PermissionError",
    ]


@pytest.mark.skipif(landlock.abi() < 4, reason="network rules came with ABI 4")
def test_no_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = """
            address = ("127.0.0.1", int(sys.argv[1]))
            print(attempt(socket.create_connection, address))
            landlock.restrict([], [])
            print(attempt(socket.create_connection, address), attempt(socket.socket().bind, ("127.0.0.1", 0)))
        """
        assert run(script, server.getsockname()[1]).split() == ["done", "PermissionError", "PermissionError"]


@pytest.mark.skipif(landlock.abi() < 6, reason="scopes came with ABI 6")
def test_no_signals_and_abstract_sockets_of_others() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0agentrl-landlock-test")
        server.listen()
        script = """
            landlock.restrict([], [])
            print(attempt(socket.socket(socket.AF_UNIX).connect, "\\0agentrl-landlock-test"))
            print(attempt(os.kill, os.getppid(), 0), attempt(os.kill, os.getpid(), 0))
        """
        assert run(script).split() == ["PermissionError", "PermissionError", "done"]
