"""An HTTP proxy that lets each container reach the hosts on its own list, and nothing else.

    python proxy.py ADDRESS

It writes its port to stdout, reads lines `{"container": ADDRESS, "hosts": [...]}` from stdin (hosts null: forget it),
and ends with its parent, when stdin ends. Containers are distinguished by their address: their network has no way out,
and they cannot send from an address that is not theirs. Imports nothing of agentrl.
"""

import asyncio
import ipaddress
import json
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from urllib.parse import urlsplit

IP_FREEBIND = 15
"""Linux's number; Python has no name for it before 3.13."""
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 20.0
PER_REQUEST = ("connection:", "proxy-connection:", "proxy-authorization:", "keep-alive:")
Lists = dict[str, tuple[str, ...]]


class Refused(Exception):
    """Status line for the client."""


def allowed(host: str, hosts: tuple[str, ...]) -> bool:
    """Whether a host is on a list, by its name, its address, or as `*.example.org`."""
    host = host.lower().rstrip(".")
    return any(host == one.lower() or (one.startswith("*.") and host.endswith(one[1:].lower())) for one in hosts)


async def main(address: str) -> None:
    """Serve until stdin ends."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lists: Lists = {}
    listener = socket.socket()
    listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)  # podman makes the network with its first container
    listener.bind((address, 0))
    server = await asyncio.start_server(lambda *streams: serve(lists, *streams), sock=listener)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    orders = StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async for line in orders:
        order = json.loads(line)
        if order["hosts"] is None:
            lists.pop(order["container"], None)
        else:
            lists[order["container"]] = tuple(order["hosts"])


async def serve(lists: Lists, reader: StreamReader, writer: StreamWriter) -> None:
    """One request; its connection ends with it, so that a second one cannot pass for the first."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
        host, port, greeting, first = parse(head.decode("latin-1"))
        known = lists.get(writer.get_extra_info("peername")[0], ())
        if not allowed(host, known):
            raise Refused(f"403 {host} is not on the list of allowed hosts")
        far_reader, far_writer = await connect(host, port)
        far_writer.write(first)
        writer.write(greeting)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
    except Refused as refused:
        writer.write(f"HTTP/1.1 {refused}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


def parse(head: str) -> tuple[str, int, bytes, bytes]:
    """Host, port, our first bytes to the container and to the host. Raises Refused."""
    line, *headers = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, version = (*line.split(" "), "", "")[:3]
    url = urlsplit(f"//{target}" if method == "CONNECT" else target)
    if not url.hostname or url.scheme not in ("", "http"):
        raise Refused("400 this is a proxy for HTTP and CONNECT")
    if method == "CONNECT":
        return url.hostname, url.port or 443, b"HTTP/1.1 200 Connected\r\n\r\n", b""
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [header for header in headers if not header.lower().startswith(PER_REQUEST)]
    lines = [f"{method} {path} {version}", *kept, "Connection: close"]
    return url.hostname, url.port or 80, b"", ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def connect(host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    """A connection; a name does not lead to this machine itself. Raises Refused."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
            address = str(found[0][4][0])
            ip = ipaddress.ip_address(address)
            if address != host and (ip.is_loopback or ip.is_link_local or ip.is_unspecified):
                raise Refused(f"403 {host} is an address of this machine")
            return await asyncio.open_connection(address, port)
    except (OSError, TimeoutError) as error:
        raise Refused(f"502 {host} cannot be reached: {type(error).__name__}") from error


async def copy(reader: StreamReader, writer: StreamWriter) -> None:
    """All that comes, then the end of it."""
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
