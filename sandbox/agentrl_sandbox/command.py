"""One command of a run, from its start to the end of its last process, in the warden.

The user's process gets pipes for stdin, stdout and stderr and nothing else. Output beyond its cap, memory, CPU and
wall time beyond theirs end it; what it wrote until then is kept. Whoever still holds a pipe afterwards delays nobody:
every process is ended before the rest is read.
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

from agentrl_sandbox import watch
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import LimitHit, Limits
from agentrl_sandbox.kernel import syscalls
from agentrl_sandbox.kernel.confine import limit_resources
from agentrl_sandbox.memory import Stream
from agentrl_sandbox.wire import Bytes

TICK = 0.03
"""Seconds between two looks at what the processes use."""
_REST = 4
"""A look that took long is followed by so many times as long without one."""
_CHUNK = 1 << 16
_OWN_PROCESSES = 4
"""What a tier may need beside the user's processes."""
_TAIL = 4096
_MIB = 1 << 20


class Become(BaseException):
    """Raised in the user's process, confined by now: the interpreter is to go on as the user's program.

    With arguments: as a session, whose pipes they are.
    """


class Broken(Exception):
    """The sandbox itself failed."""


@dataclass(frozen=True)
class Program:
    """What to start: by exec, or (no `argv`) in the interpreter that was forked."""

    argv: Sequence[str] | None
    env: Mapping[str, str]


@dataclass
class Ended:
    """How a command went; as CommandResult, before it crosses to the pool."""

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
        """Start it. `pipes`: further file descriptors for the program, which gets them as 3, 4 and so on."""
        self.tier, self.folder, self.limits = tier, folder, limits
        self.cpu_limit = limits.wall if limits.cpu is None else limits.cpu
        self.cpu_before = cpu_of_children()
        self.cpu_used = 0.0
        self.scheduled_before = 0.0, 0.0
        self.peak = 0
        self.hit: LimitHit | None = None
        ours, theirs = self._pipes()
        self.output = {handle: Stream(limits.output_bytes) for handle in ours[1:3]}
        if tier.group is not None:
            tier.group.begin()
        self.start = time.monotonic()
        self.pid = syscalls.fork()
        if self.pid == 0:
            self._child([*theirs[:3], *pipes, theirs[3]], program)
        for handle in (*theirs, *pipes):
            os.close(handle)
        self.stdin, self.stdout, self.stderr, self.trouble = ours
        self.rest = memoryview(stdin)
        self.process = os.pidfd_open(self.pid)
        self.poll = select.poll()
        for handle in (self.stdout, self.stderr, self.process):
            self.poll.register(handle, select.POLLIN)
        self._feed()

    @staticmethod
    def _pipes() -> tuple[list[int], list[int]]:
        """stdin, stdout, stderr and the one for trouble before the start: our ends, which never block, and theirs."""
        stdin, *others = (os.pipe() for _ in range(4))
        ours = [stdin[1], *(reader for reader, _ in others)]
        for handle in ours:
            os.set_blocking(handle, False)
        return ours, [stdin[0], *(writer for _, writer in others)]

    def _child(self, theirs: Sequence[int], program: Program) -> None:
        """In the user's process: never returns. A failure goes to the last one of `theirs`, the trouble pipe."""
        trouble = len(theirs) - 1
        try:
            os.setsid()
            # Out of the way first: one of theirs may bear a number from 3 up that another is to get.
            above = [fcntl.fcntl(handle, fcntl.F_DUPFD, 64) for handle in theirs[3:]]
            for number, handle in enumerate((*theirs[:3], *above)):
                os.dup2(handle, number, inheritable=number < trouble)
            os.chdir(self.folder)
            limit_resources(self.limits, self.cpu_limit, self.tier.others())
            syscalls.close_above(trouble + 1)
            argv = None if program.argv is None else self.tier.command(program.argv)
            self.tier.confine(self.limits)
        except BaseException as error:
            os.write(trouble, f"b{error!r}".encode())
            os._exit(1)
        if argv is None:
            os.close(trouble)
            raise Become(*range(3, trouble))
        try:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], list(argv), self.tier.environment(program.env))
        except OSError as error:
            os.write(trouble, f"e{argv[0]}: {error.strerror}".encode())
        finally:
            os._exit(127)

    def wait(self, caller: int) -> Ended:
        """Until it has ended, by itself or by a limit. It also ends when the other side of `caller` is gone."""
        return self._finish(self._reap() if self._serve(caller, self.process) else None)

    def _serve(self, caller: int, *awaited: int) -> bool:
        """Move its input and output until one of `awaited` is readable; False: it ran into a limit, `hit`."""
        self.poll.register(caller, 0)  # a hang-up needs no asking
        look = self.start + TICK
        while self.hit is None:
            now = time.monotonic()
            if self._late(now):
                self.hit = "time"
                continue
            if now >= look:
                self._look()
                done = time.monotonic()
                look = done + max(TICK, _REST * (done - now))
                continue
            events = dict(self.poll.poll(max(1, int((min(look, self._deadline(now)) - now) * 1000))))
            if events.get(caller):
                self.tier.end()
                self.tier.leave()
                os._exit(0)
            if any(handle in events for handle in awaited):
                return True
            self._pump(events)
        return False

    def _deadline(self, now: float) -> float:
        end = self.start + self.limits.wall
        return end if now < end else now + TICK

    def _late(self, now: float) -> bool:
        """Past the limit, less the time that it wanted a core and got none: neighbours do not turn a verdict."""
        over = now - self.start - self.limits.wall
        return over >= 0 and over >= min(self._starved(), self.limits.wall)

    def _starved(self) -> float:
        """Seconds that its first thread waited for a core, but for what the run's others had of cores meanwhile."""
        seen = watch.scheduled(self.pid)
        ran, waited = (now - then for now, then in zip(seen, self.scheduled_before, strict=True))
        return waited - max(0.0, self.cpu_used - ran)

    def _feed(self) -> None:
        """Write to stdin what it takes now; close it after the last byte, or when nobody reads it any more."""
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

    def _pump(self, events: Mapping[int, int]) -> None:
        for handle in events:
            if handle == self.stdin:
                self._feed()
            elif handle in self.output and not self._take(handle):
                self.poll.unregister(handle)

    def _take(self, handle: int) -> bool:
        """Read what is there, up to the cap; False at the end of the stream."""
        stream = self.output[handle]
        count = stream.read(handle)
        if stream.over:
            self.hit = self.hit or "output"
        return count != 0

    def _look(self) -> None:
        """See to the limits that only looking holds. It ends at the deadline, whatever there is to be seen."""
        reap_orphans(self.pid)
        pids = self.tier.processes()
        memory = self._memory(pids)
        self.cpu_used = watch.cpu(pids) + cpu_of_children() - self.cpu_before
        self.peak = max(self.peak, memory)
        exceeded: dict[LimitHit, bool] = {
            "memory": memory > self.limits.memory_mb * _MIB,
            "processes": len(pids) > self.limits.processes + _OWN_PROCESSES,
            "disk": self.tier.overfull(self.limits),
            "cpu": self.cpu_used > self.cpu_limit,
        }
        self.hit = next((name for name, over in exceeded.items() if over), self.hit)

    def _memory(self, pids: Sequence[int]) -> int:
        if self.tier.group is not None:
            return self.tier.group.used() - sum(stream.used for stream in self.output.values())
        used = watch.memory(pids, self.limits.memory_mb * _MIB, self._deadline(time.monotonic()))
        return used + watch.folder_bytes(self.folder) if self.tier.disk_is_memory else used

    def _reap(self) -> int:
        _, status, about = os.wait4(self.pid, 0)
        self.peak = max(self.peak, about.ru_maxrss * 1024)
        return self.tier.exit_code(os.waitstatus_to_exitcode(status))

    def _finish(self, code: int | None) -> Ended:
        seconds = time.monotonic() - self.start
        self.tier.end()
        for handle, stream in self.output.items():
            while self.hit != "output" and stream.read(handle):
                self.hit = "output" if stream.over else self.hit
        if self.hit is None and self.tier.overfull(self.limits, ended=True):
            self.hit, code = "disk", None
        trouble = os.read(self.trouble, _CHUNK).decode(errors="replace")
        for handle in (self.stdin, self.stdout, self.stderr, self.trouble, self.process):
            if handle >= 0:
                os.close(handle)
        if trouble.startswith("b"):
            raise Broken(trouble[1:])
        cpu = cpu_of_children() - self.cpu_before
        stdout, stderr = (stream.kept for stream in self.output.values())
        if code is None and self.hit not in ("time", "cpu"):
            code = -signal.SIGKILL
        ended = Ended(
            seconds, code, stdout, stderr, cpu, self.peak, self.hit, self.hit == "output", trouble[1:] or None
        )
        ended.hit = ended.hit or self._guess(ended)
        if ended.hit == "cpu":
            ended.code = None
        return ended

    def _guess(self, ended: Ended) -> LimitHit | None:
        """Which limit a program ran into that the kernel held by refusing; it says so itself, if at all."""
        if ended.code in (-signal.SIGXCPU,) or (ended.code == -signal.SIGKILL and ended.cpu > self.cpu_limit):
            return "cpu"
        if ended.code == 0:
            return None
        if ended.code == -signal.SIGXFSZ or watch.folder_full(self.folder):
            return "disk"
        for words, limit in _WORDS:
            if self.output[self.stderr].tail_has_any(words, _TAIL):
                return limit
        return None


_WORDS: tuple[tuple[tuple[bytes, ...], LimitHit], ...] = (
    ((b"MemoryError", b"bad_alloc", b"Cannot allocate memory", b"OutOfMemory", b"heap out of memory"), "memory"),
    ((b"Resource temporarily unavailable", b"can't start new thread"), "processes"),
    ((b"No space left on device", b"File too large"), "disk"),
)


def reap_orphans(pid: int) -> None:
    """Ended processes that were left to this one, but not `pid`: the kernel counts them until they are reaped."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != pid:
            os.waitpid(ended.si_pid, 0)


def cpu_of_children() -> float:
    """Seconds that ended children, and theirs, have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
