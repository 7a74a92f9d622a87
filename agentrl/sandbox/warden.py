"""One job, from its plan to its last reply: stage, compile, run for each stdin, fetch.

A plan: how the program is started, its files and limits. A stdin is read from the caller just before its run, so no
run holds another's. The warden trusts the plan's sender and nothing that the user's processes leave behind.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.sandbox import folder, wire
from agentrl.sandbox.cells import Cells
from agentrl.sandbox.command import Broken, Command, Ended, Program
from agentrl.sandbox.isolation import Tier
from agentrl.sandbox.job import Limits

MOST_KEPT = 64 << 20
"""Bytes of compiled files that are worth keeping, and of files that are fetched."""


def serve(tier: Tier, slot: int, caller: int) -> None:
    """Read a plan from `caller`, do it, reply. In the user's process Become comes out of it."""
    plan, contents = wire.read(caller)
    try:
        tier.enter(slot, Limits(**plan["run_limits"]))
        Warden(tier, caller, plan, contents).work()
    except (Broken, OSError) as error:
        wire.write(caller, {"kind": "broken", "why": f"{type(error).__name__}: {error}"})
    finally:
        tier.leave()


class Warden:
    """Does a plan."""

    def __init__(self, tier: Tier, caller: int, plan: Mapping[str, Any], contents: Sequence[bytes]) -> None:
        self.tier, self.caller, self.plan = tier, caller, plan
        named = zip(plan["files"], contents, strict=True)
        self.files: folder.Files = {path: (content, mode) for (path, mode), content in named}
        self.where = ""

    def work(self) -> None:
        """The whole job."""
        plan = self.plan
        if plan["session"]:
            self._session(Limits(**plan["run_limits"]))
            return
        if plan["compile"] is not None and not self._compile(plan["compile"], Limits(**plan["compile_limits"])):
            return
        self._run_all(Limits(**plan["run_limits"]))
        files = folder.fetch(self.where, plan["fetch"], MOST_KEPT) if plan["fetch"] and self.where else {}
        wire.write(self.caller, {"kind": "end", "names": list(files)}, list(files.values()))

    def _compile(self, argv: Sequence[str], limits: Limits) -> bool:
        ended = self._command(Program(argv, self.plan["env"]), b"", limits)
        good = ended.code == 0
        if good:
            made = folder.collect(self.where, MOST_KEPT)
            if made is None:
                raise Broken(f"the compiler left more than {MOST_KEPT >> 20} MiB, or files that are no plain ones")
            self.files = folder.runnable(made) if self.tier.fakes_modes else made
        kept = list(self.files.items()) if good else []
        names = [(path, mode) for path, (_, mode) in kept]
        self._reply("compiled", ended, {"names": names}, [content for _, (content, _) in kept])
        return good

    def _run_all(self, limits: Limits) -> None:
        argv = self.plan["argv"]
        program = Program(argv, self.plan["env"])
        end = time.monotonic() + self.plan["total"] if self.plan["total"] is not None else None
        for _ in range(self.plan["tests"]):
            _, (stdin,) = wire.read(self.caller)
            if end is not None:
                limits = replace(limits, wall=min(limits.wall, max(end - time.monotonic(), 0.001)))
            ended = self._command(program, stdin, limits)
            self._reply("run", ended)
            spent = end is not None and time.monotonic() >= end
            if spent or (self.plan["stop"] and (ended.code != 0 or ended.error is not None)):
                return

    def _session(self, limits: Limits) -> None:
        """Cell after cell, until one of them ends the interpreter."""
        self.where = self.tier.fresh(limits)
        folder.stage(self.where, self.files)
        session = Cells(self.tier, self.where, Program(self.plan["argv"], self.plan["env"]), limits)
        while not session.over:
            header, (code,) = wire.read(self.caller)
            ended = session.run(code, header["wall"], self.caller)
            self._reply("run", ended, {"over": session.over})

    def _command(self, program: Program, stdin: bytes, limits: Limits) -> Ended:
        self.where = self.tier.fresh(limits)
        try:
            folder.stage(self.where, self.files)
        except OSError as error:
            return Ended(error=f"the files do not fit into the work folder: {error.strerror}")
        return Command(self.tier, self.where, program, stdin, limits).wait(self.caller)

    def _reply(
        self, kind: str, ended: Ended, more: Mapping[str, Any] | None = None, blobs: Sequence[bytes] = ()
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
        wire.write(self.caller, header, [ended.stdout, ended.stderr, *blobs])
