"""The sandbox as a library: a pool of isolated runs.

Invariants: no code of a job runs in this process; a `Result` means that the sandbox worked; a job is repeated once if
a process of the sandbox itself ended during it; `close` leaves no process.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentrl_sandbox import host_folders, probes, wire
from agentrl_sandbox import isolation as tiers
from agentrl_sandbox import plan as plans
from agentrl_sandbox.compile_cache import CompileCache, Compiled
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.isolation import Probe
from agentrl_sandbox.job import SESSIONS, Busy, CommandResult, Job, Limits, Result
from agentrl_sandbox.job_connection import JobConnection, Lost
from agentrl_sandbox.languages import find
from agentrl_sandbox.open_files import allow_open_files
from agentrl_sandbox.plan import Plan
from agentrl_sandbox.session import CELL_RUNNER, GRACE, Session
from agentrl_sandbox.slot_allocator import SlotAllocator
from agentrl_sandbox.supervisor_client import SupervisorClient

ALLOW = "AGENTRL_SANDBOX_ALLOW_UNISOLATED"
"""Environment variable that must be 1 for isolation="none"."""
MOST_SLOTS = 256
MORE = "to open more at once, raise rollout.max_concurrent_trajectories, or a server's --sessions"
_SOURCE = "main.py"
_START = 60.0


class Pool:
    """Runs jobs in isolation.

    `slots`: jobs at once (None: two per core). `queue`: jobs that may wait (None: any number). `sessions`: open at
    once; more wait until one is closed. `python`: the interpreter of the runs. Raises UsageError on a system other than
    Linux.
    """

    def __init__(
        self,
        *,
        isolation: str = "auto",
        slots: int | None = None,
        queue: int | None = None,
        python: str | None = None,
        sessions: int = SESSIONS,
    ) -> None:
        if sys.platform != "linux":
            raise UsageError(
                f"the code sandbox needs Linux, and this is {sys.platform}: start its server in Docker "
                "(docs/sandbox.md), and name its /run_code in reward.sandbox_fusion.url"
            )
        self.wanted = isolation
        self.slots = slots or min(MOST_SLOTS, 2 * len(os.sched_getaffinity(0)))
        if self.slots > MOST_SLOTS:
            raise UsageError(f"slots={slots} are more than one pool can have; give {MOST_SLOTS} at most")
        self.allocator = SlotAllocator(self.slots, queue)
        self.sessions = SlotAllocator(sessions)
        self.python = python or sys.executable
        self.isolation = ""
        self.uncounted = ""
        """Why the kernel does not count all memory of a run; empty if it does."""
        self.forks = False
        self.report: list[Probe] = []
        self.compiled = CompileCache()
        self.supervisor: SupervisorClient | None = None
        self.config: dict[str, Any] = {}
        self.repair = asyncio.Lock()
        self.counts = dict.fromkeys(("done", "failed", "busy", "restarts"), 0)
        self.programs: dict[str, Mapping[str, str]] = {}

    async def start(self) -> None:
        """Choose the first tier whose canaries fail to escape. Raises UsageError if none works."""
        names = self._candidates()
        readable = await asyncio.get_running_loop().run_in_executor(None, host_folders.find, self.python)
        folder = tempfile.mkdtemp(prefix="agentrl-sandbox-")
        os.chmod(folder, 0o711)
        env = plans.environment(host_folders.folders(readable), tiers.WORK)
        allow_open_files()  # a session takes one here and one in the supervisor, which inherits the limit
        self.config = {"python": self.python, "slots": self.slots * 3, "sessions": self.sessions.slots}
        self.config |= {"roots": readable, "folder": folder}
        self.config |= {"env": env, "source": _SOURCE}
        for name in names:
            self.report.append(await self._try(name))
            if self.report[-1].ok:
                return
        await self.close()
        reasons = "; ".join(f"{probe.tier}: {probe.why}; fix: {probe.fix}" for probe in self.report)
        raise UsageError(f"isolation={self.wanted!r} does not work on this host. {reasons}")

    def _candidates(self) -> list[str]:
        if self.wanted == "none":
            if os.environ.get(ALLOW) != "1":
                raise UsageError(f"isolation='none' gives code all your rights; set {ALLOW}=1 to allow it")
            logging.getLogger(__name__).warning("the sandbox has no isolation: programs have all your rights")
            return ["none"]
        names = [name for name in tiers.TIERS if name != "none"]
        if self.wanted not in (*names, "auto"):
            raise UsageError(f"isolation={self.wanted!r} is unknown; give one of auto, {', '.join(tiers.TIERS)}")
        return names if self.wanted == "auto" else [self.wanted]

    async def _try(self, name: str) -> Probe:
        """Probe a tier; if it works, the pool uses it."""
        self.isolation = name
        self.config |= {"tier": name, "bwrap": host_folders.bwrap(self.python) if name == "bwrap" else None}
        try:
            await self._connect()
            probe = Probe(name, True) if name == "none" else await probes.examine(name, self.run)
        except (SandboxError, OSError) as error:
            probe = probes.refused(name, str(error))
        if not probe.ok and self.supervisor is not None:
            await self.supervisor.close()
            self.supervisor = None
        return probe

    async def _connect(self) -> SupervisorClient:
        """Start a supervisor, and wait until its first zygote is ready."""
        self.supervisor = SupervisorClient(self.config)
        try:
            message = await asyncio.wait_for(self.supervisor.receive(), _START)
        except TimeoutError:
            raise SandboxError(f"the sandbox's interpreter was not ready within {_START:g} s") from None
        if message["op"] != "ready":
            raise SandboxError(message["why"])
        self.sessions.slots, self.forks = message["sessions"], message["forks"]
        self.uncounted = message["uncounted"]
        return self.supervisor

    async def run(self, job: Job, *, client: str = "", queue_timeout: float | None = None) -> Result:
        """Run a job. Raises Busy if no slot is free within `queue_timeout` seconds, Unavailable, SandboxError."""
        recipe = find(job.language)
        if recipe.name not in self.programs:
            self.programs[recipe.name] = recipe.locate(self.python)
        plan = plans.make(job, recipe, self.programs[recipe.name], forks=self.forks, env=self.config["env"])
        if plan.key is None:
            return await self._run_in_slot(job, plan, client, queue_timeout)
        while (known := self.compiled.get(plan.key)) is None:
            try:
                first = await asyncio.wait_for(self.compiled.claim(plan.key), queue_timeout)
            except TimeoutError:
                raise Busy(f"the same program was still being compiled after {queue_timeout:g} s") from None
            if first:
                try:
                    return await self._run_in_slot(job, plan, client, queue_timeout)
                finally:
                    self.compiled.settle(plan.key)
        if known.files is None:
            return Result(self.isolation, known.result)
        plan.header["compile"], plan.files = None, known.files
        return replace(await self._run_in_slot(job, plan, client, queue_timeout), compiled=known.result)

    async def _run_in_slot(self, job: Job, plan: Plan, client: str, queue_timeout: float | None) -> Result:
        """Wait for a slot, then run the plan; once more if a process of the sandbox ended meanwhile."""
        try:
            await self.allocator.acquire(client, queue_timeout)
        except Busy:
            self.counts["busy"] += 1
            raise
        try:
            try:
                return await self._attempt(job, plan)
            except Lost:
                if self.supervisor is not None:
                    self.supervisor.close_idle()  # those that wait were probably lost, too
                return await self._attempt(job, plan)
        finally:
            self.allocator.release()

    async def _attempt(self, job: Job, plan: Plan) -> Result:
        supervisor, connection = await self._connection(plan)
        sending = None
        try:
            content, stdins = plan.message(job.stdins)
            if stdins:  # more than fits into the socket: it is sent while the first replies come
                sending = asyncio.ensure_future(self._send(connection, content, stdins))
            else:
                await self._send(connection, content, ())
            result = await self._receive(connection, job, plan)
            if sending is not None:
                await sending
        except BaseException:
            connection.reusable = False
            self.counts["failed"] += 1
            raise
        finally:
            if sending is not None:
                sending.cancel()
            supervisor.release(connection)
        self.counts["done"] += 1
        return result

    async def _connection(self, plan: Plan) -> tuple[SupervisorClient, JobConnection]:
        """A supervisor and a connection to one of its job supervisors. Raises Lost if two supervisors end meanwhile."""
        supervisor = await self._running_supervisor()
        connection = supervisor.reuse(plan.flavour) if plan.header["plain"] else None
        try:
            return supervisor, connection or await supervisor.open(plan.flavour)
        except Lost:  # it has ended, and the kernel may take a moment to say so
            await supervisor.close()
            supervisor = await self._running_supervisor()
            return supervisor, await supervisor.open(plan.flavour)

    async def _running_supervisor(self) -> SupervisorClient:
        """The supervisor; a new one if it has ended."""
        async with self.repair:
            if self.supervisor is None:
                raise SandboxError("the sandbox is not started, or closed")
            if self.supervisor.process.poll() is not None:
                self.counts["restarts"] += 1
                await self.supervisor.close()
                await self._connect()
            return self.supervisor

    @staticmethod
    async def _send(connection: JobConnection, content: bytes, stdins: Sequence[bytes]) -> None:
        """Send the plan, then each stdin. If the job supervisor has ended, `_receive` reports why."""
        with suppress(Lost):
            await connection.send(content)
            for stdin in stdins:
                await connection.send(wire.pack({}, [stdin]))

    async def _receive(self, connection: JobConnection, job: Job, plan: Plan) -> Result:
        compiled: CommandResult | None = None
        runs: list[CommandResult] = []
        while True:
            limits = job.compile_limits if plan.header["compile"] and compiled is None else job.run_limits
            header, (*blobs,) = await connection.receive(2 * limits.wall + GRACE)
            if header["kind"] == "end":
                connection.reusable = header["reusable"]
                return Result(self.isolation, compiled, runs, dict(zip(header["names"], blobs, strict=True)))
            answer = plans.result(header, blobs[0], blobs[1])
            if header["kind"] == "run":
                runs.append(answer)
                continue
            compiled = answer
            self._keep(plan, answer, header["names"], blobs[2:])
            if answer.return_code != 0:
                return Result(self.isolation, compiled)

    def _keep(self, plan: Plan, answer: CommandResult, names: list[tuple[str, int]], contents: list[bytes]) -> None:
        """Cache a compilation that no limit ended."""
        if plan.key is None or answer.status != "Finished" or answer.limit_hit is not None:
            return
        made = {path: (content, mode) for (path, mode), content in zip(names, contents, strict=True)}
        self.compiled.settle(plan.key, Compiled(answer, made if answer.return_code == 0 else None))

    async def session(self, limits: Limits, *, client: str = "", queue_timeout: float | None = None) -> Session:
        """Open a Python interpreter that keeps its state between cells. It starts with its first cell.

        Raises Busy if too many are open and none is closed within `queue_timeout` seconds (None: no limit).
        """
        try:
            await self.sessions.acquire(client, queue_timeout)
        except Busy:
            self.counts["busy"] += 1
            open_ones = f"{self.sessions.slots} sessions are open"
            raise Busy(f"{open_ones} and none was closed within {queue_timeout:g} s; {MORE}") from None
        return Session(self, limits, client)

    async def open_session(self, limits: Limits) -> JobConnection:
        """The connection to a session's new interpreter. Raises SandboxError."""
        argv = None if self.forks else [self.python, "-c", CELL_RUNNER]
        plan = plans.session(limits, argv, self.config["env"])
        connection = await (await self._running_supervisor()).open(plan.flavour)
        try:
            await connection.send(plan.message(())[0])
        except BaseException:
            connection.close()
            raise
        return connection

    def memory(self) -> str:
        """How the memory of a run is limited, as a sentence."""
        if not self.uncounted:
            return "all memory of a run counts, by a control group"
        return f"all memory of a run counts; that of sockets and pipes is an estimate, for {self.uncounted}"

    def stats(self) -> dict[str, float]:
        """Load, for /health and /metrics."""
        running, queued = self.allocator.used, self.allocator.waiting
        sessions = {"sessions": self.sessions.used, "sessions_queued": self.sessions.waiting}
        return {"running": running, "queued": queued, "slots": self.slots, **self.counts, **sessions}

    async def close(self) -> None:
        """End all runs. A job in flight raises SandboxError."""
        supervisor, self.supervisor = self.supervisor, None
        if supervisor is not None:
            await supervisor.close()
        if self.config:
            with suppress(OSError):  # the supervisor has emptied it, unless it was killed
                os.rmdir(self.config["folder"])
