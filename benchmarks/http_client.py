"""CPU time of a request for tokens: agentrl's HTTP client beside aiohttp and httpx.

    python benchmarks/http_client.py [--requests 1024] [--concurrency 64] [--rounds 3]

A server in another process answers each request at once with 64 tokens and their log-probs, as SGLang does; requests
carry 1,024 token ids. The median round is shown, in CPU time of the client's process.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import httpx

from agentrl.http.client import Http

BODY = {"rid": "0", "input_ids": list(range(1024)), "return_logprob": True, "sampling_params": {"max_new_tokens": 64}}
META = {"output_token_logprobs": [[-0.5, 7, None]] * 64, "finish_reason": {"type": "length"}}
Post = Callable[[], Awaitable[object]]


class Answering(asyncio.Protocol):
    """Answers every request of a connection with the same bytes."""

    answer = json.dumps({"meta_info": META}).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0) if found else 0
        if found and len(body) >= length:
            self.data = b""
            lines = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(lines % len(self.answer) + self.answer)


async def serve() -> None:
    """Print the port, and serve."""
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def seconds(post: Post, requests: int, concurrency: int) -> float:
    """CPU seconds of a request."""
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            await post()

    start = time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return (time.process_time() - start) / requests


async def measure(port: int, args: argparse.Namespace) -> None:
    """One line for each client."""
    url, limits = f"http://127.0.0.1:{port}", httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with AsyncExitStack() as stack:
        own = Http(url)
        stack.push_async_callback(own.close)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        client = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=None))

        async def by_aiohttp() -> object:
            async with session.post(f"{url}/generate", json=BODY) as answer:
                return await answer.json()

        async def by_httpx() -> object:
            return (await client.post(f"{url}/generate", json=BODY)).json()

        clients: dict[str, Post] = {
            "agentrl": lambda: own.post("/generate", BODY),
            "aiohttp": by_aiohttp,
            "httpx": by_httpx,
        }
        found: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(args.rounds):
            for name, post in clients.items():
                found[name].append(await seconds(post, args.requests, args.concurrency))
        for name, times in found.items():
            print(f"{name}: {statistics.median(times) * 1e6:.0f} us a request")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        asyncio.run(measure(int(server.stdout.readline()), args))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
