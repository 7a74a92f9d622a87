"""One job, from its plan to its last reply: stage, compile, run for each stdin, fetch.

A plan: how the program is started, its files and limits. A stdin is read from the caller just before its run, so no
run holds another's. The warden trusts the plan's sender and nothing that the user's processes leave behind.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl_sandbox import folder, wire
from agentrl_sandbox.cells import Cells
from agentrl_sandbox.command import Broken, Command, Ended, Program
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits

MOST_JOBS = 200
"""One after another, by one warden."""
MOST_KEPT = 64 << 20
"""Bytes of compiled files that are worth keeping, and of files that are fetched."""


def serve(tier: Tier, slot: int, caller: int) -> None:
    """Read a plan from `caller`, do it, reply; and again, where that may be. In the user's process Become comes out.

    What a job brought into this process must not be found by the next one, whose program is a fork of it. So a
    warden goes on only after a plain run, whose data lay in memory of its own (see `memory`), and not for ever.
    """
    try:
        for count in range(MOST_JOBS):
            plan, contents = wire.read(caller)
            limits = Limits(**plan["run_limits"])
            if count == 0:
                _enter(tier, slot, limits)
            again = tier.renews and plan["plain"] and count < MOST_JOBS - 1
            if not Warden(tier, caller, plan, contents, again).work():
                break
            del plan, contents
            tier.renew()
    except (Broken, OSError) as error:
        wire.write(caller, [({"kind": "broken", "why": f"{type(error).__name__}: {error}"}, ())])
    except wire.Closed:
        pass
    tier.leave()


def _enter(tier: Tier, slot: int, limits: Limits) -> None:
    tier.enter(slot, limits)
    try:
        if tier.group is not None:
            tier.group.enter()
    except OSError:
        tier.group = None  # then memory is looked for in /proc


class Warden:
    """Does a plan; `again`: and says that it is ready for another."""

    def __init__(
        self, tier: Tier, caller: int, plan: Mapping[str, Any], contents: Sequence[wire.Bytes], again: bool
    ) -> None:
        self.tier, self.caller, self.plan, self.again = tier, caller, plan, again
        named = zip(plan["files"], contents, strict=True)
        self.files: folder.Files = {path: (content, mode) for (path, mode), content in named}
        self.where = ""
        self.unsent: list[tuple[dict[str, Any], Sequence[wire.Bytes]]] = []

    def work(self) -> bool:
        """The whole job. Whether another may follow."""
        plan = self.plan
        if plan["session"]:
            self._session(Limits(**plan["run_limits"]))
            return False
        if plan["compile"] is not None and not self._compile(plan["compile"], Limits(**plan["compile_limits"])):
            return False
        self._run_all(Limits(**plan["run_limits"]))
        files = folder.fetch(self.where, plan["fetch"], MOST_KEPT) if plan["fetch"] and self.where else {}
        self.unsent.append(({"kind": "end", "names": list(files), "again": self.again}, list(files.values())))
        self._send()
        return self.again

    def _compile(self, argv: Sequence[str], limits: Limits) -> bool:
        ended = self._command(Program(argv, self.plan["env"]), b"", limits, kept=True)
        made = folder.collect(self.where, MOST_KEPT) if ended.code == 0 else {}
        if made is None:  # the program's doing, like a file that is too large
            note = f"\nthe compiler left more than {MOST_KEPT >> 20} MiB, or files that are no plain ones\n".encode()
            ended.code, ended.hit, ended.stderr, made = 1, "disk", bytes(ended.stderr) + note, {}
        made = folder.runnable(made) if self.tier.fakes_modes else made
        good = ended.code == 0
        self.files = made if good else self.files
        names = [(path, mode) for path, (_, mode) in made.items()]
        self._reply("compiled", ended, {"names": names}, [content for content, _ in made.values()])
        self._send()
        return good

    def _run_all(self, limits: Limits) -> None:
        argv = self.plan["argv"]
        program = Program(argv, self.plan["env"])
        end = time.monotonic() + self.plan["total"] if self.plan["total"] is not None else None
        for _ in range(self.plan["tests"]):
            self._send()
            _, (stdin,) = wire.read(self.caller)
            if end is not None:
                limits = replace(limits, wall=min(limits.wall, max(end - time.monotonic(), 0.001)))
            ended = self._command(program, stdin, limits, kept=bool(self.plan["fetch"]))
            self._reply("run", ended)
            spent = end is not None and time.monotonic() >= end
            if spent or (self.plan["stop"] and (ended.code != 0 or ended.error is not None)):
                self.again = False  # stdins may be under way that nobody reads
                return

    def _session(self, limits: Limits) -> None:
        """Cell after cell, until one of them ends the interpreter."""
        self.where = self.tier.fresh(limits)
        self._stage(kept=False)
        session = Cells(self.tier, self.where, Program(self.plan["argv"], self.plan["env"]), limits)
        while not session.over:
            header, (code,) = wire.read(self.caller)
            ended = session.run(code, header["wall"], self.caller)
            self._reply("run", ended, {"over": session.over})
            self._send()

    def _command(self, program: Program, stdin: wire.Bytes, limits: Limits, *, kept: bool) -> Ended:
        self.where = self.tier.fresh(limits)
        try:
            self._stage(kept=kept)
        except OSError as error:
            return Ended(error=f"the files do not fit into the work folder: {error.strerror}")
        return Command(self.tier, self.where, program, stdin, limits).wait(self.caller)

    def _stage(self, *, kept: bool) -> None:
        self.tier.expect(self.files, kept=kept)
        folder.stage(self.where, self.files)

    def _reply(
        self, kind: str, ended: Ended, more: Mapping[str, Any] | None = None, blobs: Sequence[wire.Bytes] = ()
    ) -> None:
        header = {
            "kind": kind,
            "seconds": ended.seconds,
            "code": ended.code,
            "cpu": ended.cpu,
            "memory": ended.memory,
            "hit": ended.hit,
            "truncated": ended.truncated,
            "error": ended.error,
            **(more or {}),
        }
        self.unsent.append((header, [ended.stdout, ended.stderr, *blobs]))

    def _send(self) -> None:
        """A run's reply waits for what follows it: one that is the last goes out along with the job's end."""
        if self.unsent:
            wire.write(self.caller, self.unsent)
            self.unsent = []
