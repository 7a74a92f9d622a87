"""A session in the job supervisor: one interpreter runs cell after cell, each with limits and output of its own."""

import contextlib
import os
import select
import time
from dataclasses import replace

from agentrl_sandbox import usage
from agentrl_sandbox.command import Command, CommandEnd, Program, cpu_of_children
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits
from agentrl_sandbox.memory import Stream
from agentrl_sandbox.wire import Bytes

_FOREVER = 1e6


class CellCommand(Command):
    """The interpreter of a session. `over`: it has ended."""

    def __init__(self, tier: Tier, folder: str, program: Program, limits: Limits) -> None:
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        os.set_blocking(self.requests, False)
        self.over = False
        # The kernel counts CPU seconds over the whole session; the limit of a cell is enforced by polling.
        super().__init__(tier, folder, program, b"", replace(limits, cpu=_FOREVER), [requests, replies])
        self.cpu = limits.cpu
        self.poll.register(self.replies, select.POLLIN)

    def run(self, code: Bytes, wall: float, connection: int) -> CommandEnd:
        """Run one cell for at most `wall` seconds."""
        self.limits = replace(self.limits, wall=wall)
        self.cpu_limit = wall if self.cpu is None else self.cpu
        self.cpu_before, self.cpu_used = self._cpu_now(), 0.0
        self.scheduled_before = usage.scheduled(self.pid)
        self.start, self.peak = time.monotonic(), 0
        self.output = {handle: Stream(self.limits.output_bytes) for handle in self.output}
        self.stdin, self.rest = self.requests, memoryview(len(code).to_bytes(4, "big") + code)
        self.tier.resume()
        self._write_stdin()
        alive = self._serve(connection, self.process, self.replies)
        answer = os.read(self.replies, 64) if alive else b""
        seconds = time.monotonic() - self.start
        if answer.strip().isdigit():
            self._poll_usage()
            while any(stream.read(handle) for handle, stream in self.output.items()):
                pass
        if not answer.strip().isdigit() or any(stream.over for stream in self.output.values()):
            return self._end(alive)
        stdout, stderr = (stream.kept for stream in self.output.values())
        used = self._cpu_now() - self.cpu_before
        self.tier.pause()
        return CommandEnd(seconds, int(answer) & 0xFF, stdout, stderr, used, self.peak)

    def _end(self, alive: bool) -> CommandEnd:
        """End the interpreter, unless it ended during this cell."""
        self.over = True
        self.stdin = -1
        if any(stream.over for stream in self.output.values()):
            self.hit = self.hit or "output"
        exited = alive and bool(select.select([self.process], [], [], 1.0)[0])  # else it has only closed its pipe
        ended = self._finish(self._reap() if exited else None)
        os.close(self.requests)
        os.close(self.replies)
        return ended

    def _drop(self, handle: int) -> None:
        """Keep the pipe for cells open after each cell."""
        if handle == self.requests:
            with contextlib.suppress(KeyError):
                self.poll.unregister(handle)
        else:
            super()._drop(handle)

    def _cpu_now(self) -> float:
        return usage.cpu(self.tier.processes()) + cpu_of_children()
