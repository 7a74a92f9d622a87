"""The metrics of the engine's cache."""

import asyncio
from typing import Any

import pytest

from agentrl.core.errors import InfraError
from agentrl.rollout import cache_watch
from agentrl.rollout.cache_watch import CacheWatch


class Engine:
    """Its cache has one more token at each reading, of four."""

    def __init__(self) -> None:
        self.read, self.dead, self.often = 0, False, asyncio.Event()

    async def health(self) -> dict[str, float]:
        if self.dead:
            raise InfraError("dead")
        self.read += 1
        if self.read > 1:
            self.often.set()
        counted = {"prompt_tokens": 10.0 * self.read, "reused_tokens": 4.0 * self.read}
        return counted | {"kv_used": float(min(self.read, 4)), "kv_room": 4.0}


async def test_use_and_hits_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_watch, "FIRST", 0.0)
    engine: Any = Engine()
    watch = CacheWatch(engine)
    assert watch.metrics() == {}
    async with watch.watching(), watch.watching():
        await engine.often.wait()
    first = watch.metrics()
    assert first["perf/prefix_hit_rate"] == pytest.approx(0.4)
    assert (first["perf/kv_use_max"], first["perf/kv_use_mean"]) == (0.5, 0.375)  # the last reading is after the work
    read = engine.read
    await asyncio.sleep(0.01)
    assert engine.read == read  # the watch ends with the sampling
    assert watch.metrics() == {}


async def test_a_dead_engine_and_one_without_figures_give_nothing() -> None:
    engine: Any = Engine()
    engine.dead = True
    watch = CacheWatch(engine)
    async with watch.watching():
        pass
    assert watch.metrics() == {}
