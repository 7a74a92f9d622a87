"""The proxy of containers with a list of hosts."""

import asyncio

import pytest

from agentrl.containers.docker.proxy import Refused, allowed, parse, serve


@pytest.mark.parametrize(
    ("host", "hosts", "found"),
    [
        ("pypi.org", ("pypi.org",), True),
        ("PyPI.org.", ("pypi.org",), True),
        ("evil-pypi.org", ("pypi.org",), False),
        ("files.example.org", ("*.example.org",), True),
        ("example.org", ("*.example.org",), False),
        ("evilexample.org", ("*.example.org",), False),
        ("example.org.evil.com", ("example.org", "*.example.org"), False),
        ("pypi.org", (), False),
    ],
)
def test_a_list_of_hosts(host: str, hosts: tuple[str, ...], found: bool) -> None:
    assert allowed(host, hosts) is found


def test_requests() -> None:
    assert parse("CONNECT pypi.org:443 HTTP/1.1\r\nHost: other\r\n\r\n")[:2] == ("pypi.org", 443)
    host, port, _, sent = parse(
        "GET http://a.org/x?y=1 HTTP/1.1\r\nHost: a.org\r\nProxy-Connection: keep-alive\r\n\r\n"
    )
    assert (host, port) == ("a.org", 80)
    assert sent == b"GET /x?y=1 HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\n\r\n"
    for bad in ("GET /x HTTP/1.1\r\n\r\n", "GET ftp://a.org/ HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n"):
        with pytest.raises(Refused, match="400"):
            parse(bad)


@pytest.mark.parametrize(
    ("hosts", "asked", "answer"),
    [
        (("localhost",), "localhost", "403 localhost is an address of this machine"),
        ((), "127.0.0.1", "403 127.0.0.1 is not on the list"),
        (("127.0.0.1",), "127.0.0.1", "200 Connected"),
    ],
)
async def test_names_do_not_lead_to_this_machine(hosts: tuple[str, ...], asked: str, answer: str) -> None:
    lists = {"127.0.0.1": hosts}
    async with await asyncio.start_server(lambda *streams: serve(lists, *streams), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {asked}:{port} HTTP/1.1\r\n\r\n".encode())
        assert answer in (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.close()
