"""Watches the engine's KV cache while it samples: how full it is, and how many prompt tokens it had already.

Invariant: it only reads figures; a dead engine ends the watch and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Engine

FIRST, LONGEST = 0.05, 1.0
"""Seconds to the first reading, and the most between two; each wait is twice the one before."""
COUNTERS = ("prompt_tokens", "reused_tokens")


class CacheWatch:
    """Metrics of one engine, whose `health` may have the COUNTERS, and `kv_used` of `kv_room`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._uses: list[float] = []
        self._seen, self._before = dict.fromkeys(COUNTERS, 0.0), dict.fromkeys(COUNTERS, 0.0)
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Read while the body runs, and once more after it; bodies that run at once share a watch."""
        self._watchers += 1
        self._task = task = self._task or asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                task.cancel()
                self._task = None
            await self._read(used=False)  # nothing runs any more

    def metrics(self) -> dict[str, float]:
        """Since the last call: mean and greatest share of the cache in use, and share of prompt tokens found there."""
        uses, (prompt, reused) = self._uses, (self._seen[name] - self._before[name] for name in COUNTERS)
        self._uses, self._before = [], dict(self._seen)
        found = {"perf/kv_use_mean": sum(uses) / len(uses), "perf/kv_use_max": max(uses)} if uses else {}
        return found | ({"perf/prefix_hit_rate": reused / prompt} if prompt > 0 else {})

    async def _watch(self) -> None:
        wait = FIRST
        while True:
            await asyncio.sleep(wait)
            await self._read()
            wait = min(2 * wait, LONGEST)

    async def _read(self, *, used: bool = True) -> None:
        with suppress(InfraError):
            figures = await self.engine.health()
            self._seen = {name: figures.get(name, 0.0) for name in COUNTERS}
            if used and (room := figures.get("kv_room")):
                self._uses.append(figures["kv_used"] / room)
