"""The sandbox as a library: a pool of isolated runs, for the server and, embedded, for rewards and tools.

Invariants: no code of a job runs in this process; a `Result` means that the sandbox worked; a job is run again, once,
when a process of the sandbox's own was lost under it; `close` leaves no process.
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

from agentrl_sandbox import isolation as tiers
from agentrl_sandbox import plan as plans
from agentrl_sandbox import probes, roots, wire
from agentrl_sandbox.cache import CompileCache, Compiled
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.isolation import Probe
from agentrl_sandbox.job import SESSIONS, Busy, CommandResult, Job, Limits, Result
from agentrl_sandbox.languages import find
from agentrl_sandbox.link import Caller, Link, Lost
from agentrl_sandbox.open_files import allow_open_files
from agentrl_sandbox.plan import Plan
from agentrl_sandbox.session import CELLS, GRACE, Session
from agentrl_sandbox.turnstile import Turnstile

ALLOW = "AGENTRL_SANDBOX_ALLOW_UNISOLATED"
"""Environment variable that must be 1 before isolation="none" is obeyed."""
MOST_SLOTS = 256
MORE = "for more at once raise rollout.max_concurrent_trajectories, or a server's --sessions"
_SOURCE = "main.py"
_START = 60.0


class Pool:
    """Runs jobs, `slots` at once (None: two a core); up to `queue` wait (None: all of them).

    `sessions`: open at once; more of them wait until one is closed. `python`: whose packages the runs see. Raises
    UsageError on a system other than Linux.
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
        self.turnstile = Turnstile(self.slots, queue)
        self.sessions = Turnstile(sessions)
        self.python = python or sys.executable
        self.isolation = ""
        self.uncounted = ""
        """Why the kernel does not count all memory of a run; empty where it does."""
        self.forks = False
        self.report: list[Probe] = []
        self.compiled = CompileCache()
        self.link: Link | None = None
        self.told: dict[str, Any] = {}
        self.repair = asyncio.Lock()
        self.counts = dict.fromkeys(("done", "failed", "busy", "restarts"), 0)
        self.programs: dict[str, Mapping[str, str]] = {}

    async def start(self) -> None:
        """Choose a tier, by running something in it. Raises UsageError where none works."""
        names = self._candidates()
        reach = await asyncio.get_running_loop().run_in_executor(None, roots.find, self.python)
        folder = tempfile.mkdtemp(prefix="agentrl-sandbox-")
        os.chmod(folder, 0o711)
        env = plans.environment(roots.folders(reach), tiers.WORK)
        allow_open_files()  # a session takes one here and one in the supervisor, which inherits the limit
        self.told = {"python": self.python, "slots": self.slots * 3, "sessions": self.sessions.places}
        self.told |= {"roots": reach, "folder": folder}
        self.told |= {"env": env, "source": _SOURCE}
        for name in names:
            self.report.append(await self._try(name))
            if self.report[-1].ok:
                return
        await self.close()
        reasons = "; ".join(f"{probe.tier}: {probe.why}; to have it, {probe.mend}" for probe in self.report)
        raise UsageError(f"isolation={self.wanted!r} cannot be had on this host. {reasons}")

    def _candidates(self) -> list[str]:
        if self.wanted == "none":
            if os.environ.get(ALLOW) != "1":
                raise UsageError(f"isolation='none' lets code do all that you may; set {ALLOW}=1 if that is meant")
            logging.getLogger(__name__).warning("the sandbox has no isolation: programs can do all that you may")
            return ["none"]
        names = [name for name in tiers.TIERS if name != "none"]
        if self.wanted not in (*names, "auto"):
            raise UsageError(f"isolation={self.wanted!r} is unknown; give one of auto, {', '.join(tiers.TIERS)}")
        return names if self.wanted == "auto" else [self.wanted]

    async def _try(self, name: str) -> Probe:
        """Whether the tier works here; if so, it is the one in use."""
        self.isolation = name
        self.told |= {"tier": name, "bwrap": roots.bwrap(self.python) if name == "bwrap" else None}
        try:
            await self._connect()
            probe = Probe(name, True) if name == "none" else await probes.examine(name, self.run)
        except (SandboxError, OSError) as error:
            probe = probes.refused(name, str(error))
        if not probe.ok and self.link is not None:
            await self.link.close()
            self.link = None
        return probe

    async def _connect(self) -> Link:
        """A supervisor whose first server is ready."""
        self.link = Link(self.told)
        try:
            word = await asyncio.wait_for(self.link.hear(), _START)
        except TimeoutError:
            raise SandboxError(f"the sandbox's interpreter was not ready within {_START:g} s") from None
        if word["op"] != "ready":
            raise SandboxError(word["why"])
        self.sessions.places, self.forks = word["sessions"], word["forks"]
        self.uncounted = word["uncounted"]
        return self.link

    async def run(self, job: Job, *, client: str = "", patience: float | None = None) -> Result:
        """Do a job. Raises Busy when no place comes free within `patience` seconds, Unavailable, SandboxError."""
        recipe = find(job.language)
        if recipe.name not in self.programs:
            self.programs[recipe.name] = recipe.locate(self.python)
        plan = plans.make(job, recipe, self.programs[recipe.name], forks=self.forks, env=self.told["env"])
        if plan.key is None:
            return await self._placed(job, plan, client, patience)
        while (known := self.compiled.get(plan.key)) is None:
            try:
                first = await asyncio.wait_for(self.compiled.claim(plan.key), patience)
            except TimeoutError:
                raise Busy(f"the same program was still being compiled after {patience:g} s") from None
            if first:
                try:
                    return await self._placed(job, plan, client, patience)
                finally:
                    self.compiled.settle(plan.key)
        if known.files is None:
            return Result(self.isolation, known.result)
        plan.header["compile"], plan.files = None, known.files
        return replace(await self._placed(job, plan, client, patience), compiled=known.result)

    async def _placed(self, job: Job, plan: Plan, client: str, patience: float | None) -> Result:
        """Wait for a place, then do it; once more if a process of ours was lost."""
        try:
            await self.turnstile.enter(client, patience)
        except Busy:
            self.counts["busy"] += 1
            raise
        try:
            try:
                return await self._attempt(job, plan)
            except Lost:
                if self.link is not None:
                    self.link.forget()  # the ones that wait were probably lost with it
                return await self._attempt(job, plan)
        finally:
            self.turnstile.leave()

    async def _attempt(self, job: Job, plan: Plan) -> Result:
        link = await self._linked()
        caller = link.reuse(plan.flavour) if plan.header["plain"] else None
        caller = caller or await link.open(plan.flavour)
        sending = None
        try:
            content, stdins = plan.message(job.stdins)
            if stdins:  # more than fits into the socket: it is sent while the first replies come
                sending = asyncio.ensure_future(self._send(caller, content, stdins))
            else:
                await self._send(caller, content, ())
            result = await self._receive(caller, job, plan)
            if sending is not None:
                await sending
        except BaseException:
            caller.again = False
            self.counts["failed"] += 1
            raise
        finally:
            if sending is not None:
                sending.cancel()
            link.release(caller)
        self.counts["done"] += 1
        return result

    async def _linked(self) -> Link:
        """The supervisor; a new one where it has died."""
        async with self.repair:
            if self.link is None:
                raise SandboxError("the sandbox is not started, or closed")
            if self.link.process.poll() is not None:
                self.counts["restarts"] += 1
                await self.link.close()
                await self._connect()
            return self.link

    @staticmethod
    async def _send(caller: Caller, content: bytes, stdins: Sequence[bytes]) -> None:
        """The plan, then stdin after stdin. Where the warden is gone, the receiving side finds out why."""
        with suppress(Lost):
            await caller.send(content)
            for stdin in stdins:
                await caller.send(wire.pack({}, [stdin]))

    async def _receive(self, caller: Caller, job: Job, plan: Plan) -> Result:
        compiled: CommandResult | None = None
        runs: list[CommandResult] = []
        while True:
            limits = job.compile_limits if plan.header["compile"] and compiled is None else job.run_limits
            header, (*blobs,) = await caller.receive(2 * limits.wall + GRACE)
            if header["kind"] == "end":
                caller.again = header["again"]
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
        """Remember a compilation that ended by itself, for better or worse."""
        if plan.key is None or answer.status != "Finished" or answer.limit_hit is not None:
            return
        made = {path: (content, mode) for (path, mode), content in zip(names, contents, strict=True)}
        self.compiled.settle(plan.key, Compiled(answer, made if answer.return_code == 0 else None))

    async def session(self, limits: Limits, *, client: str = "", patience: float | None = None) -> Session:
        """A Python that keeps its state from cell to cell, until it is closed. It starts with its first cell.

        Raises Busy when too many are open and none is closed within `patience` seconds (None: as long as it takes).
        """
        try:
            await self.sessions.enter(client, patience)
        except Busy:
            self.counts["busy"] += 1
            open_ones = f"{self.sessions.places} sessions are open"
            raise Busy(f"{open_ones} and none was closed within {patience:g} s; {MORE}") from None
        return Session(self, limits, client)

    async def open_session(self, limits: Limits) -> Caller:
        """The socket of a session's new interpreter. Raises SandboxError."""
        argv = None if self.forks else [self.python, "-c", CELLS]
        plan = plans.session(limits, argv, self.told["env"])
        caller = await (await self._linked()).open(plan.flavour)
        try:
            await caller.send(plan.message(())[0])
        except BaseException:
            caller.close()
            raise
        return caller

    def memory(self) -> str:
        """How the memory of a run is limited, in words."""
        if not self.uncounted:
            return "all memory of a run counts, by a control group"
        return f"all memory of a run counts; that of sockets and pipes is an estimate, for {self.uncounted}"

    def stats(self) -> dict[str, float]:
        """Figures for health and metrics."""
        running, queued = self.turnstile.inside, self.turnstile.waiting
        sessions = {"sessions": self.sessions.inside, "sessions_queued": self.sessions.waiting}
        return {"running": running, "queued": queued, "slots": self.slots, **self.counts, **sessions}

    async def close(self) -> None:
        """End all that runs. A job in flight raises SandboxError."""
        link, self.link = self.link, None
        if link is not None:
            await link.close()
        if self.told:
            with suppress(OSError):  # the supervisor has emptied it, unless it was killed
                os.rmdir(self.told["folder"])
