"""The JSON that says which MCP servers there are: `{"mcpServers": {name: {...}}}`, as verl and others write it.

A server is `{"command", "args", "env", "cwd"}` (a process of the run) or `{"url", "auth_token", "headers", "type"}`.
`${NAME}` stands for an environment variable.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.paths import expanded
from agentrl.core.resources import find, read_text

VARIABLE = re.compile(r"\$\{(\w+)\}")
KEYS = {"command", "args", "env", "cwd", "url", "auth_token", "headers", "type", "transport"}
TRANSPORTS = {"http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse", "stdio": "stdio"}


@dataclass(frozen=True)
class ServerSpec:
    """How to reach one server: `command` or `url`."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    sse: bool = False
    """Whether the URL speaks SSE, the older of the two HTTP transports."""
    addresses: tuple[str, ...] = ()
    """Of a URL that a task brings: the checked addresses of its host. The client connects to no other one."""


def read_specs(written: Mapping[str, Any], folder: Path, where: str) -> list[ServerSpec]:
    """The servers of an entry's `mcp:` section: a file, or `mcpServers` in place. Raises UserError."""
    path = written.get("mcp_servers_config_path")
    content = _load(path, folder, where) if path else written
    servers = content.get("mcpServers")
    if not isinstance(servers, dict) or not servers:
        where = path or f"{where}: mcp"
        raise UserError(f'{where} has no servers: write {{"mcpServers": {{"name": {{"command": ..., "args": []}}}}}}')
    return [read_spec(name, with_variables(server, f"{where}: {name}"), where) for name, server in servers.items()]


def _load(path: str, folder: Path, where: str) -> dict[str, Any]:
    near = folder / expanded(path)
    file = near if near.is_file() else find(path, what=f"{where}: mcp.mcp_servers_config_path", folders=[folder])
    try:
        content = json.loads(read_text(file))
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def read_spec(name: str, server: Any, where: str) -> ServerSpec:
    """One server. Raises UserError."""
    where = f"{where}: MCP server {name!r}"
    if not isinstance(server, dict) or ("command" in server) == ("url" in server):
        raise UserError(f"{where}: write either a command (and args, env) or a url (and auth_token, headers)")
    unknown = sorted(server.keys() - KEYS)
    if unknown:
        raise UserError(f"{where}: {unknown[0]} is none of {', '.join(sorted(KEYS))}")
    if "command" in server:
        args = tuple(map(str, server.get("args") or ()))
        env = {key: str(value) for key, value in (server.get("env") or {}).items()}
        return ServerSpec(name, str(server["command"]), args, env, server.get("cwd"))
    headers = dict(server.get("headers") or {})
    if server.get("auth_token"):
        headers["Authorization"] = f"Bearer {server['auth_token']}"
    url = str(server["url"])
    return ServerSpec(name, url=url, headers=headers, sse=_is_sse(server, url, where))


def _is_sse(server: Mapping[str, Any], url: str, where: str) -> bool:
    named = server.get("type") or server.get("transport")
    if named is None:
        return url.partition("?")[0].rstrip("/").endswith("/sse")
    if named not in TRANSPORTS:
        raise UserError(f"{where}: type {named!r}: write http or sse")
    return TRANSPORTS[named] == "sse"


def with_variables(value: Any, where: str) -> Any:
    """With environment variables in place of `${NAME}`. Raises UserError."""
    if isinstance(value, dict):
        return {key: with_variables(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [with_variables(item, where) for item in value]
    return VARIABLE.sub(lambda found: _variable(found[1], where), value) if isinstance(value, str) else value


def _variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise UserError(f"{where}: the environment variable {name} is not set")
    return os.environ[name]
