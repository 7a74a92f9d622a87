"""Compiled programs, kept in memory by content: many jobs with one program compile it once, even concurrently."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from agentrl_sandbox.job import CommandResult

MOST = 128 << 20
"""Bytes kept; the least recently used go first."""


@dataclass(frozen=True)
class Compiled:
    """A compilation that no limit ended: its result, and the work folder after it (None: it failed)."""

    result: CommandResult
    files: dict[str, tuple[bytes, int]] | None

    @property
    def size(self) -> int:
        """Bytes."""
        return 1024 + sum(len(content) for content, _ in (self.files or {}).values())


class CompileCache:
    """Compilations by key. The first caller claims a key, compiles, and settles it; the others wait."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self.claims: dict[bytes, asyncio.Event] = {}

    def get(self, key: bytes) -> Compiled | None:
        """The compilation of that key, if any."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    async def claim(self, key: bytes) -> bool:
        """True: the caller must compile and `settle`. False, after a wait: call `get` again."""
        if key in self.claims:
            await self.claims[key].wait()
            return False
        self.claims[key] = asyncio.Event()
        return True

    def settle(self, key: bytes, compiled: Compiled | None = None) -> None:
        """Keep a compilation, if any, and wake the waiting callers. A second call does nothing."""
        claim = self.claims.pop(key, None)
        if claim is not None:
            claim.set()
        if compiled is None or compiled.size > self.most:
            return
        self.kept[key] = compiled
        while sum(entry.size for entry in self.kept.values()) > self.most:
            self.kept.popitem(last=False)
