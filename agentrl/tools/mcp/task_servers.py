"""MCP servers that a task brings, for one trajectory of it.

Invariant: a command runs in the task's container, and a URL leads to a host of the task's networks or to a public one:
a task reaches no other process and no private host by way of this machine.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from agentrl.core.errors import InfraError, UserError, one_line
from agentrl.tools.mcp.connection import MAX_ERROR_CHARACTERS, MAX_TASK_BYTES
from agentrl.tools.mcp.loading import schema_of
from agentrl.tools.mcp.session_pool import SessionPool
from agentrl.tools.mcp.spec import ServerSpec, read_spec
from agentrl.tools.mcp.tool import McpTool
from agentrl.tools.options import ToolOptions
from agentrl.tools.runner import ToolRunner

MAX_SCHEMA_CHARACTERS = 1 << 16
"""Characters of all schemas of a server: they are part of the prompt."""
BOUNDED = f'ulimit -f 65536; "$@" | stdbuf -o0 head -c {MAX_TASK_BYTES}'
"""Runs a command with bounds on its output, and on its errors, which go to a file."""


async def reached(name: str, server: Mapping[str, Any], trajectory: Any) -> ServerSpec:
    """The server of a trajectory's task as this machine reaches it. Raises InfraError where it does not."""
    container, uid = trajectory.container, trajectory.row.uid
    try:
        spec = replace(read_spec(name, server, uid), name=f"{name} of {uid}")
        host = urlsplit(str(spec.url)).hostname or ""
    except (UserError, ValueError, TypeError) as error:
        raise InfraError(f"{uid}: MCP server {name!r}: {one_line(error)}") from None
    if spec.command is not None:
        if not hasattr(container, "attached"):
            fix = "use rollout.containers.provider=docker, or leave the task out"
            raise InfraError(f"{uid}: its MCP server {name!r} is a command, which these containers do not run: {fix}")
        return replace(spec, command="sh", args=("-c", BOUNDED, "sh", *container.attached([spec.command, *spec.args])))
    address = await container.address(host) if hasattr(container, "address") else None
    public = f"{uid}: the url of its MCP server {name!r}"
    return replace(spec, addresses=(address,) if address else await _public_addresses(host, public))


async def _public_addresses(host: str, where: str) -> tuple[str, ...]:
    """The addresses to connect to: a name that is looked up again may lead elsewhere. Raises InfraError."""
    with suppress(OSError, UnicodeError):
        found = [str(one[4][0]) for one in await asyncio.get_running_loop().getaddrinfo(host, None)]
        if found and all(ip_address(address).is_global for address in found):
            return tuple(dict.fromkeys(found))
    raise InfraError(
        f"{where}: {host} is neither a host of the task nor a public one; correct it, or leave the task out"
    )


async def runners(pool: SessionPool, owner: Any) -> list[ToolRunner]:
    """The tools of a task's server. Raises InfraError."""
    try:
        tools = [McpTool({}, schema_of(tool), pool) for tool in await pool.tools(owner)]
        made = [ToolRunner(tool, tool.tool_schema.model_dump(), ToolOptions()) for tool in tools]
    except ValueError as error:
        raise InfraError(f"MCP server {pool.spec.name!r}: {one_line(error)[:MAX_ERROR_CHARACTERS]}") from None
    if sum(len(json.dumps(runner.schema)) for runner in made) > MAX_SCHEMA_CHARACTERS:
        raise InfraError(f"MCP server {pool.spec.name!r}: its schemas have over {MAX_SCHEMA_CHARACTERS} characters")
    return made
