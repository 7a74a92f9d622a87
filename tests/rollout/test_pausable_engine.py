"""The engine's idle time and the requests that updates interrupt."""

import asyncio
from typing import Any

import pytest

from agentrl.engines.engine import Generation, Sampling
from agentrl.rollout import pausable_engine
from agentrl.rollout.pausable_engine import PausableEngine


class Clock:
    """A clock that a test turns."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Held:
    """An engine whose requests end when a test says so."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def generate(self, token_ids: list[int], sampling: Sampling, **_: Any) -> Generation:
        await self.end.wait()
        return Generation([1], [-1.0], "stop", 0)

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any) -> None:
            """Pause, resume, sleep, update."""

        return nothing


@pytest.mark.parametrize("stops", ["pause", "sleep", "update_weights"])
async def test_without_partial_rollouts_a_request_ends_before_the_engine_stops(stops: str) -> None:
    inner = Held()
    engine = PausableEngine(inner, partial=False)  # type: ignore[arg-type]
    request = asyncio.create_task(engine.generate([1], Sampling(1), key="a"))
    await asyncio.sleep(0)
    stop = asyncio.create_task(getattr(engine, stops)(*[1] * (stops == "update_weights")))
    await asyncio.sleep(0)
    late = asyncio.create_task(engine.generate([1], Sampling(1), key="b"))
    await asyncio.sleep(0)
    assert not stop.done()
    inner.end.set()
    await request
    await stop
    if stops != "update_weights":
        await asyncio.sleep(0)
        assert not late.done()
        await getattr(engine, "resume" if stops == "pause" else "wake")()
    await late
    assert (await engine.activity())["perf/interruptions"] == 0


def figures(idle: float, requests: float, interruptions: int) -> dict[str, float]:
    names = "perf/engine_idle_share", "perf/running_requests", "perf/interruptions"
    return dict(zip(names, (idle, requests, interruptions), strict=True))


@pytest.mark.parametrize("stops", ["pause", "sleep"])
async def test_idle_is_without_requests_or_held_back(stops: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pausable_engine, "time", clock)
    inner = Held()
    engine = PausableEngine(inner)  # type: ignore[arg-type]
    clock.now = 2  # idle: nothing to do
    request = asyncio.create_task(engine.generate([1], Sampling(1), key="a"))
    await asyncio.sleep(0)
    clock.now = 5  # busy
    await getattr(engine, stops)()
    clock.now = 6  # idle: held back
    await engine.update_weights(1)
    if stops == "pause":
        await engine.resume()
    clock.now = 8  # busy
    await engine.update_weights(2)  # interrupts it once more, and is over at once
    clock.now = 10
    assert await engine.activity() == figures(idle=0.3, requests=7 / 9, interruptions=2)
    inner.end.set()
    await request
    clock.now = 14
    assert await engine.activity() == figures(idle=1.0, requests=0.0, interruptions=0)
