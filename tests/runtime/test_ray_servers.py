"""Servers of a run on Ray: which rank sends weights to which of them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

servers = pytest.importorskip("agentrl.runtime.ray.servers", reason="ray is not installed")

URLS = [f"http://10.0.0.{i}:1" for i in range(3)]


@pytest.mark.parametrize(
    ("method", "targets"),
    [
        ("nccl", {"0": [(URLS[0], 1), (URLS[2], 1)], "1": [(URLS[1], 1)]}),
        ("ipc", {"0": [(URLS[0], 1), (URLS[2], 1)], "1": [(URLS[1], 1)]}),
        ("files", {"0": [(url, 1) for url in URLS]}),
        ("adapter", {"0": [(url, 1) for url in URLS]}),
    ],
)
def test_every_rank_sends_to_its_part_of_the_servers(method: str, targets: Any) -> None:
    sent: list[Any] = []
    ranks: Any = SimpleNamespace(call=lambda *arguments: sent.append(arguments))
    senders = {url: i % 2 for i, url in enumerate(URLS)}
    made: Any = SimpleNamespace(weight_sync=method, scratch=SimpleNamespace(path=Path("there")), backend=None)
    transport = servers.RankTransport(ranks, made, senders)
    replicas: Any = [SimpleNamespace(url=url, starts=1) for url in URLS]
    asyncio.run(transport.push(replicas))
    asyncio.run(transport.push(replicas[1:2]))  # a server that was restarted gets them from the same rank
    assert sent[0] == ("push", None, method, "there", targets)
    assert set(sent[1][-1]) == {rank for rank, own in targets.items() if (URLS[1], 1) in own}
