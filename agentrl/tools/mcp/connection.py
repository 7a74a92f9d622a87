"""One session with an MCP server: opened when it is first needed, opened again after the server was lost.

Invariants:
- all of it runs in the event loop of the servers' thread, so that sessions outlive any loop of the run;
- a session is entered and left by one and the same task, as the client's scopes demand;
- a call that fails leaves the session alone unless the session itself is gone.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import IO, Any

from agentrl.core.errors import InfraError, last_line, needing
from agentrl.tools.mcp.spec import ServerSpec

START_SECONDS = 120
"""Until a server must have answered: one that npx or uvx downloads first takes its time."""
MAX_TOOLS = 10_000
MAX_ERROR_CHARACTERS = 500
"""Characters of a server's own words in an error."""
MAX_TASK_BYTES = 1 << 26
"""Bytes of an answer over HTTP of a server that a task brings, and of all that it writes over stdio."""


class Connection:
    """A session. Its methods belong to the servers' loop."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.busy = 0
        """Running calls; the pool counts them."""
        self._client: Any = None
        self._life: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._opening = asyncio.Lock()

    async def tools(self) -> list[Any]:
        """The server's tools, within the time of its start. Raises InfraError."""
        try:
            async with asyncio.timeout(START_SECONDS) as limit:
                return await self._listed()
        except TimeoutError:
            await self.close()
            if not limit.expired():
                raise
            raise InfraError(f"MCP server {self.spec.name!r} did not list its tools within {START_SECONDS} s") from None

    async def _listed(self) -> list[Any]:
        client, found, cursor = await self._open(), [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if len(found) > MAX_TOOLS:
                raise InfraError(f"MCP server {self.spec.name!r} lists more than {MAX_TOOLS} tools")
            if not cursor:
                return found

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The server's answer. Raises MCPError when the server refuses, InfraError when it is gone."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            client = await self._open()
            return await client.call_tool(tool, arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise MCPError(error.code, error.message[:MAX_ERROR_CHARACTERS]) from None
            await self.close()
            raise InfraError(f"MCP server {self.spec.name!r} is gone: {error}") from error
        except (OSError, EOFError) as error:
            await self.close()
            raise InfraError(f"MCP server {self.spec.name!r} is gone: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the session; safe to call twice, and the next call opens a new one."""
        life, self._life, self._client = self._life, None, None
        self._leave.set()
        if life is not None:
            await asyncio.wait([life])

    async def _open(self) -> Any:
        async with self._opening:
            if self._life is not None and not self._life.done():
                return self._client
            self._leave, self._client = asyncio.Event(), None
            opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(opened, self._leave))
            try:
                self._client = await asyncio.wait_for(asyncio.shield(opened), START_SECONDS)
            except TimeoutError:
                raise InfraError(f"MCP server {self.spec.name!r} did not answer for {START_SECONDS} s") from None
            finally:
                if self._client is None:  # late, dead, or its call was cancelled
                    opened.cancel()  # nobody waits for its error any more
                    self._life.cancel()
            return self._client

    async def _live(self, opened: asyncio.Future[Any], leave: asyncio.Event) -> None:
        """Keep the session open from start to end."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            try:
                async with _client(self.spec, output) as client:
                    client.session.validate_tool_result = _skip_validation
                    opened.set_result(client)
                    await leave.wait()
            except BaseException as error:  # of the server, in groups of groups
                if not opened.done():
                    output.seek(0)
                    reason = (last_line(output.read()) or _innermost(error))[:MAX_ERROR_CHARACTERS]
                    opened.set_exception(InfraError(f"MCP server {self.spec.name!r} did not start: {reason}"))
                if isinstance(error, asyncio.CancelledError):
                    raise


async def _skip_validation(tool: str, result: Any) -> None:
    """Accept every result: for one that its schema does not fit, the client would throw away a usable text."""


def _client(spec: ServerSpec, output: IO[str]) -> AbstractAsyncContextManager[Any]:
    with needing("config.type mcp: the MCP client", '"agentrl[mcp]"'):
        from mcp import Client
    return Client(_transport(spec, output))


def _transport(spec: ServerSpec, output: IO[str]) -> Any:
    """The server's streams; `output` gets the stderr of a process, and the lines of refused HTTP requests."""
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if spec.command is not None:
        given = StdioServerParameters(command=spec.command, args=list(spec.args), env=dict(spec.env), cwd=spec.cwd)
        return stdio_client(given, errlog=output)  # type: ignore[arg-type]
    assert spec.url is not None
    if spec.sse:
        return sse_client(spec.url, dict(spec.headers), httpx_client_factory=partial(_http_client, spec, output))
    return _streamable(spec.url, _http_client(spec, output, dict(spec.headers)))


@asynccontextmanager
async def _streamable(url: str, http_client: Any) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    async with http_client, streamable_http_client(url, http_client=http_client) as streams:
        yield streams


def _http_client(spec: ServerSpec, output: IO[str], headers: dict[str, str], **_: Any) -> Any:
    """A client for one server. No proxy leads to the server of a task, whose answers are bounded as they arrive."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        """The bytes of an answer."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self.stream:
                size += len(chunk)
                if size > MAX_TASK_BYTES:
                    raise OSError(f"an answer has more than {MAX_TASK_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def note(response: Any) -> None:
        if response.is_error:
            output.write(f"HTTP {response.status_code} {response.reason_phrase}\n")
        if spec.addresses:
            response.headers.pop("content-encoding", None)  # packed, few bytes may be many
            response.stream = Bounded(response.stream)

    # An answer may stream for as long as a tool works; all addresses together have the time to connect.
    timeout = httpx2.Timeout(30, read=300, connect=30 / max(1, len(spec.addresses)))
    about: dict[str, Any] = {"headers": headers, "timeout": timeout, "event_hooks": {"response": [note]}}
    if spec.addresses:
        headers["Accept-Encoding"] = "identity"
        about |= {"transport": _pinned(spec.addresses), "trust_env": False}
    return httpx2.AsyncClient(**about)


def _pinned(addresses: Sequence[str]) -> Any:
    """A transport to the first of these addresses that answers. URLs, headers and certificates have the name."""
    import httpx2

    class Pinned(httpx2.AsyncHTTPTransport):
        """Connects to no other address."""

        async def handle_async_request(self, request: Any) -> Any:
            about = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
            given = {"headers": request.headers, "stream": request.stream, "extensions": about}
            for address in addresses:
                near = httpx2.Request(request.method, request.url.copy_with(host=address), **given)
                try:
                    return await super().handle_async_request(near)
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    failed = error
            raise failed

    return Pinned(trust_env=False)


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
