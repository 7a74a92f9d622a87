"""Runs one command in the job supervisor, from its start to the end of its last process.

The user's process gets pipes for stdin, stdout and stderr and nothing else. Exceeding a limit (output, memory, CPU,
wall time) ends it; its output until then is kept. Every process is ended before the rest of the output is read, so a
process that still holds a pipe delays nothing.
"""

import contextlib
import fcntl
import os
import resource
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl_sandbox import usage
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import LimitHit, Limits
from agentrl_sandbox.kernel import syscalls
from agentrl_sandbox.kernel.confine import limit_resources
from agentrl_sandbox.memory import Stream
from agentrl_sandbox.wire import Bytes

TICK = 0.03
"""Seconds between two polls of the usage."""
_POLL_SHARE = 4
"""After a poll, at least this many times its duration passes before the next."""
_CHUNK = 1 << 16
_OWN_PROCESSES = 4
"""Processes that a tier may need beside the user's."""
_TAIL = 4096
_MIB = 1 << 20


class BecomeUserProgram(BaseException):
    """Raised in the confined process of the user: the interpreter continues as the user's program.

    With arguments, the pipes of a session: it continues as a session.
    """


class SandboxBroken(Exception):
    """The sandbox itself failed."""


@dataclass(frozen=True)
class Program:
    """A program to start by exec or, without `argv`, in the forked interpreter."""

    argv: Sequence[str] | None
    env: Mapping[str, str]


@dataclass
class CommandEnd:
    """The end of a command: a CommandResult before it is sent to the pool."""

    seconds: float = 0.0
    code: int | None = None
    stdout: bytes | memoryview = b""
    stderr: bytes | memoryview = b""
    cpu: float = 0.0
    memory: int = 0
    hit: LimitHit | None = None
    truncated: bool = False
    error: str | None = None


class Command:
    """A started command."""

    def __init__(
        self, tier: Tier, folder: str, program: Program, stdin: Bytes, limits: Limits, pipes: Sequence[int] = ()
    ) -> None:
        """Start it. `pipes`: further file descriptors, which the program gets as 3, 4 and so on."""
        self.tier, self.folder, self.limits = tier, folder, limits
        self.cpu_limit = limits.wall if limits.cpu is None else limits.cpu
        self.cpu_before = cpu_of_children()
        self.cpu_used = 0.0
        self.scheduled_before = 0.0, 0.0
        self.peak = 0
        self.hit: LimitHit | None = None
        ours, theirs = self._pipes()
        self.output = {handle: Stream(limits.output_bytes) for handle in ours[1:3]}
        if tier.cgroup is not None:
            tier.cgroup.begin()
        self.start = time.monotonic()
        self.pid = syscalls.fork()
        if self.pid == 0:
            self._child([*theirs[:3], *pipes, theirs[3]], program)
        for handle in (*theirs, *pipes):
            os.close(handle)
        self.stdin, self.stdout, self.stderr, self.failure = ours
        self.rest = memoryview(stdin)
        self.process = os.pidfd_open(self.pid)
        self.poll = select.poll()
        for handle in (self.stdout, self.stderr, self.process):
            self.poll.register(handle, select.POLLIN)
        self._write_stdin()

    @staticmethod
    def _pipes() -> tuple[list[int], list[int]]:
        """Pipes for stdin, stdout, stderr and failures before the start: our ends (non-blocking), the child's ends."""
        stdin, *others = (os.pipe() for _ in range(4))
        ours = [stdin[1], *(reader for reader, _ in others)]
        for handle in ours:
            os.set_blocking(handle, False)
        return ours, [stdin[0], *(writer for _, writer in others)]

    def _child(self, theirs: Sequence[int], program: Program) -> None:
        """In the user's process: never returns. A failure is written to the last one of `theirs`."""
        failure = len(theirs) - 1
        try:
            os.setsid()
            # Move them up first: one of them may have a number from 3 up that another one gets.
            above = [fcntl.fcntl(handle, fcntl.F_DUPFD, 64) for handle in theirs[3:]]
            for number, handle in enumerate((*theirs[:3], *above)):
                os.dup2(handle, number, inheritable=number < failure)
            os.chdir(self.folder)
            limit_resources(self.limits, self.cpu_limit, self.tier.other_processes())
            syscalls.close_above(failure + 1)
            argv = None if program.argv is None else self.tier.command(program.argv)
            self.tier.confine(self.limits)
        except BaseException as error:
            os.write(failure, f"b{error!r}".encode())
            os._exit(1)
        if argv is None:
            os.close(failure)
            raise BecomeUserProgram(*range(3, failure))
        try:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], list(argv), self.tier.environment(program.env))
        except OSError as error:
            os.write(failure, f"e{argv[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)

    def wait(self, connection: int) -> CommandEnd:
        """Wait until it has ended, by itself or by a limit. It also ends when `connection` is closed by the pool."""
        return self._finish(self._reap() if self._serve(connection, self.process) else None)

    def _serve(self, connection: int, *awaited: int) -> bool:
        """Move input and output until one of `awaited` is readable; False: it exceeded a limit, `hit`."""
        self.poll.register(connection, 0)  # poll reports a hang-up always
        next_poll = self.start + TICK
        while self.hit is None:
            now = time.monotonic()
            if self._over_wall_limit(now):
                self.hit = "time"
                continue
            if now >= next_poll:
                self._poll_usage()
                done = time.monotonic()
                next_poll = done + max(TICK, _POLL_SHARE * (done - now))
                continue
            events = dict(self.poll.poll(max(1, int((min(next_poll, self._deadline(now)) - now) * 1000))))
            if events.get(connection):
                self.tier.kill_all()
                self.tier.clean_up()
                os._exit(0)
            if any(handle in events for handle in awaited):
                return True
            self._move_data(events)
        return False

    def _deadline(self, now: float) -> float:
        end = self.start + self.limits.wall
        return end if now < end else now + TICK

    def _over_wall_limit(self, now: float) -> bool:
        """Whether it is past the limit, less its waits for a core: the load of others changes no verdict."""
        over = now - self.start - self.limits.wall
        return over >= 0 and over >= min(self._waited_for_core(), self.limits.wall)

    def _waited_for_core(self) -> float:
        """Seconds that its first thread waited for a core, less the CPU time of the run's other threads meanwhile."""
        seen = usage.scheduled(self.pid)
        ran, waited = (now - then for now, then in zip(seen, self.scheduled_before, strict=True))
        return waited - max(0.0, self.cpu_used - ran)

    def _write_stdin(self) -> None:
        """Write to stdin as much as it accepts; close it after the last byte, or when its reader has ended."""
        try:
            while self.rest:
                self.rest = self.rest[os.write(self.stdin, self.rest) :]
        except BlockingIOError:
            self.poll.register(self.stdin, select.POLLOUT)
            return
        except BrokenPipeError:
            pass
        self._drop(self.stdin)
        self.stdin = -1

    def _drop(self, handle: int) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(handle)
        os.close(handle)

    def _move_data(self, events: Mapping[int, int]) -> None:
        for handle in events:
            if handle == self.stdin:
                self._write_stdin()
            elif handle in self.output and not self._read_output(handle):
                self.poll.unregister(handle)

    def _read_output(self, handle: int) -> bool:
        """Read the available output, up to the cap; False at the end of the stream."""
        stream = self.output[handle]
        count = stream.read(handle)
        if stream.over:
            self.hit = self.hit or "output"
        return count != 0

    def _poll_usage(self) -> None:
        """Enforce the limits that need polling. Returns at the deadline."""
        reap_orphans(self.pid)
        pids = self.tier.processes()
        memory = self._memory(pids)
        self.cpu_used = usage.cpu(pids) + cpu_of_children() - self.cpu_before
        self.peak = max(self.peak, memory)
        exceeded: dict[LimitHit, bool] = {
            "memory": memory > self.limits.memory_mb * _MIB,
            "processes": len(pids) > self.limits.processes + _OWN_PROCESSES,
            "disk": self.tier.disk_exceeded(self.limits),
            "cpu": self.cpu_used > self.cpu_limit,
        }
        self.hit = next((name for name, over in exceeded.items() if over), self.hit)

    def _memory(self, pids: Sequence[int]) -> int:
        if self.tier.cgroup is not None:
            return self.tier.cgroup.used() - sum(stream.used for stream in self.output.values())
        used = usage.memory(pids, self.limits.memory_mb * _MIB, self._deadline(time.monotonic()))
        return used + usage.folder_bytes(self.folder) if self.tier.disk_is_memory else used

    def _reap(self) -> int:
        _, status, about = os.wait4(self.pid, 0)
        self.peak = max(self.peak, about.ru_maxrss * 1024)
        return self.tier.exit_code(os.waitstatus_to_exitcode(status))

    def _finish(self, code: int | None) -> CommandEnd:
        seconds = time.monotonic() - self.start
        self.tier.kill_all()
        for handle, stream in self.output.items():
            while self.hit != "output" and stream.read(handle):
                self.hit = "output" if stream.over else self.hit
        if self.hit is None and self.tier.disk_exceeded(self.limits, ended=True):
            self.hit, code = "disk", None
        failure = os.read(self.failure, _CHUNK).decode(errors="replace")
        for handle in (self.stdin, self.stdout, self.stderr, self.failure, self.process):
            if handle >= 0:
                os.close(handle)
        if failure.startswith("b"):
            raise SandboxBroken(failure[1:])
        cpu = cpu_of_children() - self.cpu_before
        stdout, stderr = (stream.kept for stream in self.output.values())
        if code is None and self.hit not in ("time", "cpu"):
            code = -signal.SIGKILL
        ended = CommandEnd(
            seconds, code, stdout, stderr, cpu, self.peak, self.hit, self.hit == "output", failure[1:] or None
        )
        ended.hit = ended.hit or self._limit_refused(ended)
        if ended.hit == "cpu":
            ended.code = None
        return ended

    def _limit_refused(self, ended: CommandEnd) -> LimitHit | None:
        """The limit that the kernel enforced by refusing, as far as the exit code or the program's stderr shows it."""
        if ended.code in (-signal.SIGXCPU,) or (ended.code == -signal.SIGKILL and ended.cpu > self.cpu_limit):
            return "cpu"
        if ended.code == 0:
            return None
        if ended.code == -signal.SIGXFSZ or usage.folder_full(self.folder):
            return "disk"
        for words, limit in _MESSAGES:
            if self.output[self.stderr].tail_has_any(words, _TAIL):
                return limit
        return None


_MESSAGES: tuple[tuple[tuple[bytes, ...], LimitHit], ...] = (
    ((b"MemoryError", b"bad_alloc", b"Cannot allocate memory", b"OutOfMemory", b"heap out of memory"), "memory"),
    ((b"Resource temporarily unavailable", b"can't start new thread"), "processes"),
    ((b"No space left on device", b"File too large"), "disk"),
)


def reap_orphans(pid: int) -> None:
    """CommandEnd processes that were left to this one, but not `pid`: the kernel counts them until they are reaped."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != pid:
            os.waitpid(ended.si_pid, 0)


def cpu_of_children() -> float:
    """CPU seconds of ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
