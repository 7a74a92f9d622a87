"""The end of an embedded container in the sandbox: starts commands, ends them, and passes files.

A session of the sandbox, which does not have the package, runs this text and that of `output` as its first cell, and
then `serve` in each further one. Between two cells the sandbox stops all processes, so a command's time is counted
while a cell runs.
"""

import base64
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import IO, Any

from agentrl.containers.output import OutputEnds

CHUNK = 1 << 16
PR_SET_CHILD_SUBREAPER = 36
KILL_ROUNDS = 100

Fields = dict[str, Any]

libc = ctypes.CDLL(None)
running: dict[str, "RunningCommand"] = {}
files: dict[int, IO[bytes]] = {}
"""Archives on their way in or out."""
answers: list[Fields] = []
served = 0.0
"""Seconds of all cells before this one."""


class RunningCommand:
    """A command below a supervising process, which adopts processes that the command leaves."""

    def __init__(self, fields: Fields) -> None:
        self.number: str = fields["number"]
        self.begun = time.perf_counter()
        self.deadline = served + fields["timeout"]
        self.late = False
        with tempfile.TemporaryFile() as stdin:
            stdin.write(base64.b64decode(fields["stdin"]))
            stdin.seek(0)
            pairs = [os.pipe() for _ in range(3)]
            self.pid = os.fork()
            if self.pid == 0:
                _adopt([stdin.fileno(), *(writer for _, writer in pairs)], fields)
        for _, writer in pairs:
            os.close(writer)
        self.stdout, self.stderr, self.status = (reader for reader, _ in pairs)
        self.outputs = {self.stdout: OutputEnds(), self.stderr: OutputEnds()}
        for handle in self.outputs:
            os.set_blocking(handle, False)

    def read(self, handle: int) -> bool:
        """Keep head and tail of what is there; whether more may come at once."""
        try:
            data = os.read(handle, CHUNK)
        except BlockingIOError:
            return False
        self.outputs[handle].add(data)
        return bool(data)

    def end(self) -> None:
        """Answer, after the command has ended."""
        code = os.read(self.status, 16)
        os.waitpid(self.pid, 0)
        for handle in self.outputs:
            while self.read(handle):
                pass
            os.close(handle)
        os.close(self.status)
        del running[self.number]
        seconds = time.perf_counter() - self.begun
        texts = {"stdout": self.outputs[self.stdout].text(), "stderr": self.outputs[self.stderr].text()}
        answers.append({"number": self.number, "code": None if self.late else int(code), "seconds": seconds, **texts})

    def kill(self) -> None:
        """End the command and all its children, which then are children of its parent."""
        self.late = True
        for _ in range(KILL_ROUNDS):
            if not _killed(_below(self.pid)):
                break
            time.sleep(0.005)
        _killed([self.pid])
        self.end()


def _adopt(handles: list[int], fields: Fields) -> None:
    """In the process above a command: start it, and pass its exit code on. Never returns."""
    code = 127
    try:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        above = [os.dup2(handle, number) for number, handle in zip((200, 201, 202, 203), handles, strict=True)]
        os.closerange(3, 200)
        code = _start(above, fields)
    finally:
        os.write(203, str(code).encode())
        os._exit(0)


def _start(handles: list[int], fields: Fields) -> int:
    """Run the command until it ends; its exit code."""
    stdin, stdout, stderr, _ = handles
    try:
        command = subprocess.Popen(
            fields["argv"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=fields["cwd"],
            env={**os.environ, **fields["env"]},
            start_new_session=True,
        )
    except OSError as error:
        os.write(stderr, f"{error.filename or fields['argv'][0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126
    for handle in (stdin, stdout, stderr):
        os.close(handle)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == command.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _below(pid: int) -> list[int]:
    """All living processes below a process."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b") ")[2].split()[:2]
            if state not in b"ZX":
                parents[int(name)] = int(parent)
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return [each for each in found if each != pid]


def _killed(pids: list[int]) -> bool:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def serve(requests: list[Fields], patience: float) -> None:
    """Take up requests; print the answers as JSON once there are some, after `patience` seconds at the latest."""
    global served
    begun = time.monotonic()
    for request in requests:
        _take_up(request)
    while running and not answers and (left := begun + patience - time.monotonic()) > 0:
        _wait(left)
        for command in [each for each in running.values() if served + time.monotonic() - begun > each.deadline]:
            command.kill()
    served += time.monotonic() - begun
    sys.stdout.write(json.dumps(answers))
    answers.clear()


def _wait(seconds: float) -> None:
    """Until something is written or ended."""
    handles = {handle: command for command in running.values() for handle in (*command.outputs, command.status)}
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    ready = {handle for handle, _ in poll.poll(max(1, int(min(seconds, 0.02) * 1000)))}
    for handle in ready:
        command = handles[handle]
        if handle == command.status:
            command.end()
        elif command.number in running:
            command.read(handle)


def _take_up(request: Fields) -> None:
    number = request["number"]
    try:
        result = globals()[f"do_{request['do']}"](request)
    except (OSError, tarfile.TarError, ValueError) as error:
        result = {"error": str(error)}
    if result is not None:
        answers.append({"number": number, **result})


def do_prepare(request: Fields) -> Fields:
    """Make the working folder."""
    with contextlib.suppress(OSError):  # only in tiers that give each run a /tmp of its own
        os.chmod("/tmp", 0o1777)
    if request["workdir"]:
        os.makedirs(request["workdir"], exist_ok=True)
        os.chdir(request["workdir"])
    return {}


def do_run(request: Fields) -> None:
    """Start a command."""
    command = RunningCommand(request)
    running[command.number] = command


def do_kill(request: Fields) -> Fields:
    """End a command, if it still runs."""
    if request["command"] in running:
        running[request["command"]].kill()
    return {}


def do_put(request: Fields) -> Fields:
    """Take a part of an archive; unpack it after the last one."""
    file = files.get(request["archive"]) or _archive(request["archive"])
    file.write(base64.b64decode(request["data"]))
    if request["last"]:
        with files.pop(request["archive"]):
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                tar.extractall("/", filter="fully_trusted")
    return {}


def do_get(request: Fields) -> Fields:
    """Pack a file or folder at the first part; give the next part of its archive."""
    if request["archive"] not in files:
        if not os.path.lexists(request["path"]):
            raise FileNotFoundError(f"there is no {request['path']}")
        file = _archive(request["archive"])
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(request["path"], os.path.basename(request["path"].rstrip("/")) or "root")
        file.seek(0)
    data = files[request["archive"]].read(request["size"])
    if not data:
        files.pop(request["archive"]).close()
    return {"data": base64.b64encode(data).decode()}


def _archive(number: int) -> IO[bytes]:
    file = files[number] = tempfile.TemporaryFile()  # noqa: SIM115
    return file
