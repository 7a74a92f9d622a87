"""Each rollout worker sends requests itself; the controller starts servers, and halts requests for new weights."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from agentrl.core.shares import VARIABLE
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import RemoteEngine
from tests.engines.test_remote import Fake, engine_of, fakes, hang_up, reply  # noqa: F401  (fakes is a fixture)

links = pytest.importorskip("agentrl.runtime.ray.links", reason="ray is not installed")


def clients(own: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ends of two workers, each with a copy of the link as it travels."""
    ends = []
    for number in range(2):
        monkeypatch.setenv(VARIABLE, f"{number}/2")
        ends.append(links.link_to(own))
        ends[-1].open(own.pool.report_unreachable)
    return ends


async def test_workers_spread_groups_over_servers_and_survive_a_lost_answer(
    fakes: list[Fake],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = await engine_of(fakes)
    ends = clients(own, monkeypatch)
    waiting = asyncio.ensure_future(ends[0].engine.generate([1], Sampling(2), key="0/early/0"))
    await asyncio.sleep(0.05)
    assert not waiting.done()  # no weights are there yet
    for end in ends:
        await end.set(3)
    assert (await waiting).weight_version == 3
    ends[0].engine.release("0/early/0")
    first = len(fakes[0].asked)
    await asyncio.gather(*(end.engine.generate([1], Sampling(2), key=f"1/{i}/0") for i, end in enumerate(ends)))
    assert Counter(fake.url for fake in fakes for _ in fake.asked[first if fake is fakes[0] else 0 :]) == {
        fake.url: 1 for fake in fakes
    }  # both have no load, and the workers choose different servers
    fakes[1].trouble = lambda _: hang_up if len(fakes[1].asked) == 2 else None
    own.pool.replicas[1].serving = False  # nobody has asked it yet; it comes back when the controller confirms it
    own.pool.lost(own.pool.replicas[1])
    assert (await ends[1].engine.generate([1, 7, 7], Sampling(2), key="1/1/0")).token_ids == [7, 7]
    for end in ends:
        await end.engine.close()
    await own.close()


async def test_a_halt_interrupts_and_the_new_weights_continue(
    fakes: list[Fake],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = await engine_of(fakes[:1])
    end, _ = clients(own, monkeypatch)
    await end.set(3)

    arrived = asyncio.Event()

    async def until_aborted(request: web.Request) -> web.Response:
        arrived.set()
        while not fakes[0].aborted:  # noqa: ASYNC110  (the server has no event for it)
            await asyncio.sleep(0.01)
        return reply(2, "abort")

    fakes[0].trouble = lambda _: until_aborted if len(fakes[0].asked) == 1 else None
    drawing = asyncio.ensure_future(end.engine.generate([1], Sampling(5), key="1/a/0"))
    await arrived.wait()
    await end.set(None)
    assert len(fakes[0].asked) == 1
    await end.set(4)
    assert (await drawing).versions == (3, 3, 4, 4, 4)
    await end.engine.close()
    await own.close()
