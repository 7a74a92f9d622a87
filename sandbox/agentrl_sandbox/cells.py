"""A session in the warden: one interpreter, run cell by cell, each cell with its own time and output."""

import contextlib
import os
import select
import time
from dataclasses import replace

from agentrl_sandbox import watch
from agentrl_sandbox.command import Command, Ended, Program, cpu_of_children
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits
from agentrl_sandbox.memory import Stream
from agentrl_sandbox.wire import Bytes

_FOREVER = 1e6


class Cells(Command):
    """The interpreter of a session. `over` once it has ended, for whatever reason."""

    def __init__(self, tier: Tier, folder: str, program: Program, limits: Limits) -> None:
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        os.set_blocking(self.requests, False)
        self.over = False
        # The kernel counts CPU seconds over the whole session; cells are held to theirs by looking.
        super().__init__(tier, folder, program, b"", replace(limits, cpu=_FOREVER), [requests, replies])
        self.cpu = limits.cpu
        self.poll.register(self.replies, select.POLLIN)

    def run(self, code: Bytes, wall: float, caller: int) -> Ended:
        """One cell, `wall` seconds at most."""
        self.limits = replace(self.limits, wall=wall)
        self.cpu_limit = wall if self.cpu is None else self.cpu
        self.cpu_before, self.cpu_used = self._cpu_now(), 0.0
        self.scheduled_before = watch.scheduled(self.pid)
        self.start, self.peak = time.monotonic(), 0
        self.output = {handle: Stream(self.limits.output_bytes) for handle in self.output}
        self.stdin, self.rest = self.requests, memoryview(len(code).to_bytes(4, "big") + code)
        self.tier.resume()
        self._feed()
        alive = self._serve(caller, self.process, self.replies)
        answer = os.read(self.replies, 64) if alive else b""
        seconds = time.monotonic() - self.start
        if answer.strip().isdigit():
            self._look()
            while any(stream.read(handle) for handle, stream in self.output.items()):
                pass
        if not answer.strip().isdigit() or any(stream.over for stream in self.output.values()):
            return self._last(alive)
        stdout, stderr = (stream.kept for stream in self.output.values())
        used = self._cpu_now() - self.cpu_before
        self.tier.pause()
        return Ended(seconds, int(answer) & 0xFF, stdout, stderr, used, self.peak)

    def _last(self, alive: bool) -> Ended:
        """It ended in the midst of this cell, or must."""
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
        """The pipe for cells stays open after each."""
        if handle == self.requests:
            with contextlib.suppress(KeyError):
                self.poll.unregister(handle)
        else:
            super()._drop(handle)

    def _cpu_now(self) -> float:
        return watch.cpu(self.tier.processes()) + cpu_of_children()
