"""The end of an embedded container in the sandbox: starts commands, ends them, and passes files.

A session of the sandbox, which does not have the package, runs this text and that of `output` as its first cell, and
then `serve` in each further one. Between two cells the sandbox stops all processes, so a command's time is counted
while a cell runs.
"""

import base64
import contextlib
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
KILL_ROUNDS = 100

Fields = dict[str, Any]

running: dict[str, "RunningCommand"] = {}
files: dict[int, IO[bytes]] = {}
"""Archives on their way in or out."""
answers: list[Fields] = []
served = 0.0
"""Seconds of all cells before this one."""


class RunningCommand:
    """A command in a session of its own; its number is the mark in the environment of all its processes."""

    def __init__(self, fields: Fields) -> None:
        self.number: str = fields["number"]
        self.deadline = served + fields["timeout"]
        self.late = False
        with tempfile.TemporaryFile() as stdin:
            stdin.write(base64.b64decode(fields["stdin"]))
            stdin.seek(0)
            pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            env = {**os.environ, **fields["env"]}
            self.process = subprocess.Popen(
                fields["argv"], **pipes, cwd=fields["cwd"], env=env, start_new_session=True, bufsize=0
            )
        self.outputs = {stream: OutputEnds() for stream in (self.process.stdout, self.process.stderr) if stream}
        for stream in self.outputs:
            os.set_blocking(stream.fileno(), False)

    def read(self, stream: IO[bytes]) -> bool:
        """Keep head and tail of what is there; whether more may come at once."""
        data = stream.read(CHUNK)  # None: nothing is there now
        self.outputs[stream].add(data or b"")
        return bool(data)

    def end(self) -> None:
        """Answer, after the command has ended."""
        code = self.process.wait()
        for stream in self.outputs:
            while self.read(stream):
                pass
            stream.close()
        del running[self.number]
        stdout, stderr = (ends.text() for ends in self.outputs.values())
        code = code if code >= 0 else 128 - code
        ended = {"code": None if self.late else code, "stdout": stdout, "stderr": stderr}
        answers.append({"number": self.number, **ended})

    def kill(self) -> None:
        """End the command and all its processes."""
        self.late = True
        for _ in range(KILL_ROUNDS):
            if not _killed(_family(self.process.pid, self.number.encode())):
                break
            time.sleep(0.005)
        self.end()


def _family(session: int, mark: bytes) -> set[int]:
    """The living processes of a session, those with the mark in their environment, and all below these."""
    parents, found = dict[int, int](), set[int]()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            state, parent, _, own = _content(f"/proc/{pid}/stat").rpartition(b") ")[2].split()[:4]
            if state not in b"ZX":
                parents[pid] = int(parent)
                found |= {pid} if int(own) == session or mark in _content(f"/proc/{pid}/environ") else set()
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _killed(pids: set[int]) -> bool:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # a shell that runs on would take up its next command
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
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
    streams = {stream.fileno(): (command, stream) for command in running.values() for stream in command.outputs}
    poll = select.poll()
    for handle in streams:
        poll.register(handle, select.POLLIN)
    for handle, _ in poll.poll(max(1, int(min(seconds, 0.02) * 1000))):
        command, stream = streams[handle]
        command.read(stream)
    for command in [each for each in running.values() if each.process.poll() is not None]:
        command.end()


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


def do_run(request: Fields) -> Fields | None:
    """Start a command; the answer comes at its end, or where it cannot be started."""
    try:
        running[request["number"]] = RunningCommand(request)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return {"code": code, "stderr": f"{error.filename or request['argv'][0]}: {error.strerror}\n"}
    except ValueError as error:  # a NUL, or half a surrogate pair
        return {"code": 126, "stderr": f"{error}\n"}
    return None


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
