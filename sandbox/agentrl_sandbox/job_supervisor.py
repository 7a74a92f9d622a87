"""The job supervisor: the process that does one job: stage files, compile, run for each stdin, fetch files.

A plan says how the program is started, with its files and limits. A stdin is read from the connection just before its
run, so that no run can hold another's. The job supervisor trusts the sender of the plan and nothing that the processes
of the user leave behind.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl_sandbox import wire, work_folder
from agentrl_sandbox.command import Command, CommandEnd, Program, SandboxBroken
from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits
from agentrl_sandbox.session_supervisor import CellCommand

MOST_JOBS = 200
"""Jobs of one job supervisor, one after another."""
MOST_KEPT = 64 << 20
"""Bytes of compiled files that are cached, and of files that are fetched."""


def serve(tier: Tier, slot: int, connection: int) -> None:
    """Do the jobs that arrive on `connection`. In the user's process this raises BecomeUserProgram.

    The next job's program is a fork of this process and must not find data of an earlier job. So only a plain run may
    be followed by another job, because its data is in memory that is returned to the kernel (see `memory`), and a
    job supervisor does MOST_JOBS at most.
    """
    try:
        for count in range(MOST_JOBS):
            plan, contents = wire.read(connection)
            limits = Limits(**plan["run_limits"])
            if count == 0:
                _enter(tier, slot, limits)
            reusable = tier.reusable and plan["plain"] and count < MOST_JOBS - 1
            if not JobSupervisor(tier, connection, plan, contents, reusable).work():
                break
            del plan, contents
            tier.reset()
    except (SandboxBroken, OSError) as error:
        wire.write(connection, [({"kind": "broken", "why": f"{type(error).__name__}: {error}"}, ())])
    except wire.Closed:
        pass
    tier.clean_up()


def _enter(tier: Tier, slot: int, limits: Limits) -> None:
    tier.enter_slot(slot, limits)
    try:
        if tier.cgroup is not None:
            tier.cgroup.enter()
    except OSError:
        tier.cgroup = None  # memory is then read from /proc


class JobSupervisor:
    """Does the job of a plan. `reusable`: another job may follow."""

    def __init__(
        self, tier: Tier, connection: int, plan: Mapping[str, Any], contents: Sequence[wire.Bytes], reusable: bool
    ) -> None:
        self.tier, self.connection, self.plan, self.reusable = tier, connection, plan, reusable
        named = zip(plan["files"], contents, strict=True)
        self.files: work_folder.Files = {path: (content, mode) for (path, mode), content in named}
        self.folder = ""
        self.unsent: list[tuple[dict[str, Any], Sequence[wire.Bytes]]] = []

    def work(self) -> bool:
        """Do the whole job; whether another may follow."""
        plan = self.plan
        if plan["session"]:
            self._session(Limits(**plan["run_limits"]))
            return False
        if plan["compile"] is not None and not self._compile(plan["compile"], Limits(**plan["compile_limits"])):
            return False
        self._run_all(Limits(**plan["run_limits"]))
        files = work_folder.fetch(self.folder, plan["fetch"], MOST_KEPT) if plan["fetch"] and self.folder else {}
        self.unsent.append(({"kind": "end", "names": list(files), "reusable": self.reusable}, list(files.values())))
        self._send()
        return self.reusable

    def _compile(self, argv: Sequence[str], limits: Limits) -> bool:
        ended = self._command(Program(argv, self.plan["env"]), b"", limits, kept=True)
        made = work_folder.collect(self.folder, MOST_KEPT) if ended.code == 0 else {}
        if made is None:  # the program's fault, as is a file that is too large
            note = f"\nthe compiler left more than {MOST_KEPT >> 20} MiB, or files that are not plain\n".encode()
            ended.code, ended.hit, ended.stderr, made = 1, "disk", bytes(ended.stderr) + note, {}
        made = work_folder.runnable(made) if self.tier.ignores_modes else made
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
            _, (stdin,) = wire.read(self.connection)
            if end is not None:
                limits = replace(limits, wall=min(limits.wall, max(end - time.monotonic(), 0.001)))
            ended = self._command(program, stdin, limits, kept=bool(self.plan["fetch"]))
            self._reply("run", ended)
            spent = end is not None and time.monotonic() >= end
            if spent or (self.plan["stop"] and (ended.code != 0 or ended.error is not None)):
                self.reusable = False  # unread stdins may still arrive
                return

    def _session(self, limits: Limits) -> None:
        """Run cells until one of them ends the interpreter."""
        self.folder = self.tier.new_work_folder(limits)
        self._stage(kept=False)
        session = CellCommand(self.tier, self.folder, Program(self.plan["argv"], self.plan["env"]), limits)
        while not session.over:
            header, (code,) = wire.read(self.connection)
            ended = session.run(code, header["wall"], self.connection)
            self._reply("run", ended, {"over": session.over})
            self._send()

    def _command(self, program: Program, stdin: wire.Bytes, limits: Limits, *, kept: bool) -> CommandEnd:
        self.folder = self.tier.new_work_folder(limits)
        try:
            self._stage(kept=kept)
        except OSError as error:
            return CommandEnd(error=f"the files do not fit into the work folder: {error.strerror}")
        return Command(self.tier, self.folder, program, stdin, limits).wait(self.connection)

    def _stage(self, *, kept: bool) -> None:
        self.tier.expect_files(self.files, kept=kept)
        work_folder.stage(self.folder, self.files)

    def _reply(
        self, kind: str, ended: CommandEnd, more: Mapping[str, Any] | None = None, blobs: Sequence[wire.Bytes] = ()
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
        """Send the replies so far. The last run's reply is sent together with the end of the job."""
        if self.unsent:
            wire.write(self.connection, self.unsent)
            self.unsent = []
