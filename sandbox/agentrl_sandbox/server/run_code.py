"""POST /run_code: one program, run once or once a test."""

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Busy
from agentrl_sandbox.server.replies import Reply, failure_reply, result_reply
from agentrl_sandbox.server.schema import RunCode
from agentrl_sandbox.server.service import Call, Service


async def run_code(service: Service, body: RunCode, call: Call) -> Reply:
    """A RunCodeResponse. Raises Busy."""
    try:
        result = await service.run(body.job(service.settings.memory_mb), call, body.queue_timeout)
    except Busy:
        raise
    except SandboxError as error:
        call.fields |= {"verdict": "SandboxError", "why": type(error).__name__}
        return failure_reply(error, service.pool.isolation)
    reply = result_reply(result, batch=body.tests is not None)
    call.fields["verdict"] = reply["status"]
    return reply
