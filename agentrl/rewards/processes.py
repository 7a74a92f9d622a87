"""Calls a reward function in worker processes: in parallel, and a hanging worker can be killed.

Invariants: a worker does one call at a time; it is killed when its call times out, is cancelled or breaks it, and the
next call gets a new worker; workers end with the parent, since their input is then closed.
"""

import asyncio
import os
import pickle
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.rewards.function import RewardFn

LENGTH = struct.Struct("<Q")
START = 120.0
"""Seconds for a worker to load its function."""
GRACE = 2.0
"""Seconds that a worker without its pipes may take to end."""


class ProcessManager:
    """`num_workers` workers, each call for at most `timeout` seconds, start-up not counted."""

    def __init__(self, fn: RewardFn, *, num_workers: int, timeout: float) -> None:
        self.fn = fn
        self.timeout = timeout
        self._slots = asyncio.Semaphore(num_workers)
        self._idle: list[asyncio.subprocess.Process] = []

    async def __call__(self, given: Mapping[str, Any], key: str = "") -> Any:
        async with self._slots:
            worker = self._idle.pop() if self._idle else await self._start()
            outcome, value = await _ask(worker, dict(given), self.timeout)
            self._idle.append(worker)
        return result(outcome, value)

    def expect(self, keys: Sequence[str]) -> None:
        """Nothing to prepare: workers start when they are needed."""

    def skip(self, key: str) -> None:
        """Nothing waits for it."""

    async def close(self) -> None:
        """End the workers that are idle; none works when nobody waits."""
        while self._idle:
            await _kill(self._idle.pop())

    async def _start(self) -> asyncio.subprocess.Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentrl.rewards.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the run, which may have scores to wait for before it ends
        )
        outcome, value = await _ask(worker, self.fn.origin, START)
        if outcome != "done":
            await _kill(worker)
            result(outcome, value)
        return worker


async def _ask(worker: asyncio.subprocess.Process, message: Any, timeout: float) -> tuple[str, Any]:
    """Send one message and wait for the answer, ("done", value) or ("failed" or "refused", why); without one the
    worker is killed. Raises InfraError."""
    try:
        async with asyncio.timeout(timeout):
            return await _answer(worker, message)
    except TimeoutError:
        await _kill(worker)
        raise InfraError(f"no answer within {timeout:g} s") from None
    except (BrokenPipeError, ConnectionResetError, asyncio.IncompleteReadError):
        # Killed at once, a process that is ending is reaped by `kill`, and asyncio never learns its exit code.
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await worker.wait()
        await _kill(worker)
        raise InfraError(f"its process died (exit code {worker.returncode})") from None
    except BaseException:
        await _kill(worker)
        raise


async def _answer(worker: asyncio.subprocess.Process, message: Any) -> tuple[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    body = pickle.dumps(message)
    worker.stdin.write(LENGTH.pack(len(body)) + body)
    await worker.stdin.drain()
    (size,) = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))
    answer: tuple[str, Any] = pickle.loads(await worker.stdout.readexactly(size))
    return answer


def result(outcome: str, value: Any) -> Any:
    """What a worker answers. Raises UserError and InfraError where the answer says so."""
    if outcome == "refused":
        raise UserError(value)
    if outcome == "failed":
        raise InfraError(f"failed: {value}")
    return value


async def _kill(worker: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        worker.kill()
    await asyncio.shield(asyncio.ensure_future(worker.wait()))
