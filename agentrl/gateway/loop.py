"""The agent loop of programs: it starts one for each rollout, and records what it asks the policy.

A list entry of `rollout.agent.agent_loop_config_path` with `command`, `python` or `image` makes such a loop
(docs/gateway.md).

Invariants:
- the program ends with the rollout, with all its children;
- its folder lives as long as its trajectory, so that the reward function finds its files;
- a rollout without a request is an infrastructure error: the program does not use the gateway.
"""

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from agentrl.config.derived import deterministic
from agentrl.containers import ContainerSpec
from agentrl.core.clocks import limited, queued, time_limit, uncounted
from agentrl.core.errors import InfraError, UserError, one_line
from agentrl.core.json_text import to_json
from agentrl.core.points import agent_loop
from agentrl.core.shares import share_of, worker
from agentrl.engines.engine import Sampling
from agentrl.gateway.app import MODEL
from agentrl.gateway.containers import ProgramContainers, run_in
from agentrl.gateway.online import OnlineAgent
from agentrl.gateway.process import Ended, run_command
from agentrl.gateway.program import AgentProgram, filled, read_program
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.http.serving import LOCAL
from agentrl.rollout.loops.base import AgentLoop
from agentrl.tasks.runner import kept_folder
from agentrl.trajectory.message import text_of
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)

NO_PROXY = "127.0.0.1,localhost"
"""Hosts that are reached without a proxy."""
ALL_REFUSED = "got no turn of the model: all its requests were refused"
NO_REQUEST = "made no request to the gateway (give it the base URL and the key, by env or by a placeholder)"


@dataclass(frozen=True)
class Shared:
    """State that all rollouts of one program share."""

    program: AgentProgram
    slots: asyncio.Semaphore | nullcontext[None]
    starts: asyncio.Semaphore
    """Held by programs between their start and their first request."""
    containers: ProgramContainers | None
    gateways: dict[str, Gateway] = field(default_factory=dict)
    """Gateways by the address at which programs reach them."""


@agent_loop("program")
class ProgramAgent(AgentLoop):
    """Runs an agent program, unchanged, against the policy."""

    uses_tools = False
    shared: ClassVar[Shared | None] = None

    @classmethod
    def of(cls, entry: Mapping[str, Any], file: Path) -> type[AgentLoop]:
        """The loop of a list entry. Raises UserError."""
        program = read_program(entry, file)
        if "sessions" in entry:
            return type("OnlineAgent", (OnlineAgent,), {"program": program})
        slots: asyncio.Semaphore | nullcontext[None] = nullcontext()
        if program.max_concurrent:
            slots = asyncio.Semaphore(share_of(program.max_concurrent, f"agent {program.name}: max_concurrent"))
        containers = None if program.container is None else ProgramContainers(program.container, program.folder)
        shared = Shared(program, slots, asyncio.Semaphore(program.max_starting), containers)
        return type(f"{cls.__name__}_{program.name}", (cls,), {"shared": shared})

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        if self.shared is None:
            raise UserError("agent loop program: name its entry in rollout.agent.agent_loop_config_path")
        program = self.shared.program
        self._check(program)
        session = AgentSession(trajectory, self.env, sampling, program.session)
        key = f"sk-{secrets.token_hex(12)}"
        async with queued(self.shared.slots):
            gateway = await self._gateway(trajectory)
            async with gateway.serving(key, session) as url, self._starting(session):
                start, values = time.monotonic(), values_of(trajectory.row, url, key)
                values["container"] = "" if trajectory.container is None else trajectory.container.name
                offers = trajectory.extra.get("task") or {}
                values["mcp"] = to_json({"mcpServers": offers.get("mcp_servers", {})})
                values["skills"] = offers.get("skills", "")
                try:
                    ended = await self._run(program, trajectory, session, values)
                finally:
                    session.end("its program has ended")
        about = {"exit_code": ended.code, "seconds": round(time.monotonic() - start, 2), "output": ended.output}
        trajectory.extra["program"] = {**trajectory.extra.get("program", {}), **about}
        conclude(program, session, ended)

    @classmethod
    def container_spec(cls, spec: ContainerSpec) -> ContainerSpec:
        """A program in the row's container reaches the gateway, and nothing else that the row does not open."""
        closed = cls.shared is not None and cls.shared.program.inside and spec.network == "none"
        return replace(spec, network="gateway") if closed else spec

    async def _gateway(self, trajectory: Trajectory) -> Gateway:
        """The gateway that listens where the program reaches it. Raises UserError, InfraError."""
        assert self.shared is not None
        shared, program = self.shared, self.shared.program
        if program.inside and trajectory.container is None:
            raise UserError(
                f"agent {program.name}: container: task: {trajectory.row.uid} has no container; give the row "
                "extra_info.container or extra_info.task"
            )
        host = program.host or LOCAL
        if shared.containers is not None:
            host = await shared.containers.ready(program.host)
        elif program.inside:
            host = program.host or await trajectory.container.host()
        port = program.port + worker()[0] if program.port else 0  # each rollout worker has a gateway
        return shared.gateways.setdefault(host, Gateway(host, port))

    @asynccontextmanager
    async def _starting(self, session: AgentSession) -> AsyncIterator[None]:
        """Wait for a turn to start; it is over with the session's first request, or with the body."""
        assert self.shared is not None
        starts = self.shared.starts
        with uncounted():
            await starts.acquire()
        asked = asyncio.ensure_future(session.asked.wait())
        asked.add_done_callback(lambda _: starts.release())
        try:
            yield
        finally:
            asked.cancel()

    def _check(self, program: AgentProgram) -> None:
        """Raises UserError where rollouts would wait for each other for good: a deterministic engine waits until all
        of them have asked for something."""
        config = self.env.settings
        if program.max_concurrent and config and deterministic(config.trainer, config.rollout):
            raise UserError(f"agent {program.name}: leave out max_concurrent with rollout.deterministic=true")

    async def _run(
        self, program: AgentProgram, trajectory: Trajectory, session: AgentSession, values: dict[str, str]
    ) -> Ended:
        """Run the program, on this host in a new folder."""
        folder = None if program.inside else kept_folder(trajectory) / "work"
        if folder is not None:
            folder.mkdir()
        trajectory.extra["program"] = {"name": program.name} | ({"folder": str(folder)} if folder else {})
        if program.inside:
            values["python"] = "python3"
        values["folder"] = program.folder if program.container else str(folder or ".")
        if program.function is not None:
            return await _call(program, session, values)
        words, env = [filled(word, values) for word in program.command], environment(program, values)
        with limited(program.timeout, lambda: session.close("its time is over")):
            session.context = copy_context()
            if folder is None:
                return await run_in(trajectory.container, words, env, session.over.wait)
            if self.shared is not None and self.shared.containers is not None:
                return await self.shared.containers.run(words, env, folder, session.over.wait)
            _warn_that_it_runs_here(program.name)
            return await run_command(words, folder, folder.parent / "output.log", env, session.over.wait())


@cache
def _warn_that_it_runs_here(name: str) -> None:
    log.warning(
        "agent %s runs on this host, as you: what the model asks it to do can read and change your files; "
        "`image` or `container: task` in its entry puts it into a container (docs/agents.md#an-agent-in-a-container)",
        name,
    )


def conclude(program: AgentProgram, session: AgentSession, ended: Ended) -> None:
    """The trajectory's outcome after the end of its program. Raises InfraError."""
    trajectory = session.trajectory
    if session.failure is not None:
        raise session.failure
    if trajectory.finish == "max_turns":
        return
    late = ended.code is None
    outcome = program.outcome("timeout" if ended.code is None else ended.code)
    trouble = f"took longer than its timeout of {program.timeout:g} s" if late else f"ended with code {ended.code}"
    if not session.requests:
        trouble += f" and {ALL_REFUSED if session.asked.is_set() else NO_REQUEST}"
    if outcome is Outcome.INFRA_ERROR or not session.requests:
        raise InfraError(f"agent {program.name} {trouble}: {ended.last_line}")
    if outcome is Outcome.MODEL_ERROR:
        trajectory.outcome, trajectory.error = outcome, f"agent {program.name} {trouble}: {ended.last_line}"
        trajectory.finish = "timeout" if late else trajectory.finish


def values_of(row: Row, url: str, key: str) -> dict[str, str]:
    """Values of the placeholders."""
    texts = {message["role"]: text_of(message) for message in row.prompt}  # the last of each role
    return {
        "prompt": texts.get("user", ""),
        "system": texts.get("system", ""),
        **dict.fromkeys(("url", "anthropic_url", "google_url"), url),
        "openai_url": f"{url}/v1",
        "key": key,
        "port": str(urlsplit(url).port),
        "model": MODEL,
        "row": to_json(about(row)),
        "python": sys.executable,
    }


def about(row: Row) -> dict[str, Any]:
    """The parts of a row that an agent may know: neither its ground truth, nor how its task is verified."""
    hidden = ("task", "container") if row.task else ()
    extra_info = {key: value for key, value in row.extra_info.items() if key not in hidden}
    return {"uid": row.uid, "prompt": row.prompt, "data_source": row.data_source, "extra_info": extra_info}


def environment(program: AgentProgram, values: Mapping[str, str]) -> dict[str, str]:
    """The program's environment: the variables that clients of each protocol read by themselves, and its own."""
    near = f"{NO_PROXY},{urlsplit(values['url']).hostname}"
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), values["key"])
    urls = dict.fromkeys(("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), values["url"])
    own = {name: filled(value, values) for name, value in program.env.items()}
    return {**keys, **urls, "OPENAI_BASE_URL": values["openai_url"], "NO_PROXY": near, "no_proxy": near, **own}


async def _call(program: AgentProgram, session: AgentSession, values: dict[str, str]) -> Ended:
    """Call a Python function: an exception is exit code 1, as of a process."""
    function, trajectory = program.function, session.trajectory
    assert function is not None
    given = {**values, "row": json.loads(values["row"]), "messages": trajectory.row.prompt, "trajectory": trajectory}
    try:
        async with time_limit(program.timeout) as limit:
            session.context = copy_context()
            result = await function.run((), function.fit(given), timeout=None)
    except InfraError:
        raise
    except Exception as error:  # the user's own code
        if isinstance(error, TimeoutError) and limit.expired():
            return Ended(None, "")
        return Ended(1, f"{type(error).__name__}: {one_line(error)}")
    trajectory.extra["program"]["result"] = result
    return Ended(0, "" if result is None else str(result))
