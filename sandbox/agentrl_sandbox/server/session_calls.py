"""POST /sessions, /sessions/run, /sessions/close: see sessions.py."""

from collections.abc import Awaitable
from typing import TypeVar

from starlette.exceptions import HTTPException

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Busy
from agentrl_sandbox.server.replies import Reply, command_reply
from agentrl_sandbox.server.schema import OpenSession, RunCell, SessionId
from agentrl_sandbox.server.service import Call, Service

Outcome = TypeVar("Outcome")


async def open_session(service: Service, body: OpenSession, call: Call) -> Reply:
    """Open a session; its id. Waits while too many are open. Raises Busy, HTTPException."""
    limits = body.all_limits(body.run_timeout, service.settings.memory_mb)
    session = await infra_is_500(service.pool.session(limits, client=call.client, queue_timeout=body.queue_timeout))
    return {"id": service.sessions.add(session), "isolation": service.pool.isolation}


async def run_cell(service: Service, body: RunCell, call: Call) -> Reply:
    """The output of a cell, and why the session is over if it is. Raises HTTPException."""
    session = service.sessions.use(body.id)
    try:
        result = await infra_is_500(session.run(body.code, wall=body.run_timeout))
    finally:
        service.sessions.rest(body.id)
    if session.over:
        await service.sessions.close(body.id)
    service.metrics.count("agentrl_sandbox_cells_total")
    return command_reply(result) | {"over": session.over}


async def close_session(service: Service, body: SessionId, call: Call) -> Reply:
    """End a session, if it is open."""
    await service.sessions.close(body.id)
    return {}


async def infra_is_500(work: Awaitable[Outcome]) -> Outcome:
    """The outcome. Raises Busy, and HTTPException 500 for a failure of the sandbox."""
    try:
        return await work
    except Busy:
        raise
    except SandboxError as error:
        raise HTTPException(500, f"the sandbox failed: {error}") from None
