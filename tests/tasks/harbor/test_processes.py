"""Processes of a container: which are stopped before the tests, and which go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.harbor.processes import LISTED, Process, Seen, parse

SERVER = r"""
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    server.close()
os.write(1, b"%d\n" % os.getpid())
time.sleep(100)
"""

pytestmark = [pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc here"), pytest.mark.integration]


def test_servers_and_their_children_go_on() -> None:
    command = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    assert server.stdout is not None
    both = {int(server.stdout.readline()), int(server.stdout.readline())}
    try:
        seen = parse(subprocess.run(["bash", "-c", LISTED], capture_output=True, text=True).stdout)
        listed = {one.pid: one for one in seen.processes}
        ours = {*both, other.pid}  # others, and the parent of these, may serve too
        few = Seen(
            tuple(listed[pid] for pid in ours),
            {pid: sockets for pid, sockets in seen.sockets.items() if pid in ours},
            seen.listening,
        )
        assert few.serving() == both
        assert listed[other.pid].parent == os.getpid()
        assert listed[other.pid].owner == f"{os.getuid()}:{os.getgid()}"
        assert listed[other.pid].started > 0
    finally:
        other.kill()
        other.wait()
        for pid in both:
            os.kill(pid, 9)
        server.wait()


def test_a_name_cannot_hide_a_process() -> None:
    text = "9\n/proc/1 /proc/7 /proc/9\n@\n1 (sh) S 0" + " 0" * 30 + "\n7 (a\nb) S 1" + " 0" * 30 + "\n@\n"
    assert Process(7) in parse(text).processes
    assert 9 not in [one.pid for one in parse(text).processes]
