"""What compilers made, kept in memory by content: many runs of one program compile it once, even at the same time."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from agentrl_sandbox.job import CommandResult

MOST = 128 << 20
"""Bytes kept; what was used longest ago goes first."""


@dataclass(frozen=True)
class Compiled:
    """A compilation that ended by itself: what it said, and the work folder after it (None: it failed)."""

    result: CommandResult
    files: dict[str, tuple[bytes, int]] | None

    @property
    def size(self) -> int:
        """Bytes."""
        return 1024 + sum(len(content) for content, _ in (self.files or {}).values())


class CompileCache:
    """By key. Whoever finds nothing claims the key, compiles, and settles it; the others wait for that."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self.claims: dict[bytes, asyncio.Event] = {}

    def get(self, key: bytes) -> Compiled | None:
        """What is known of it."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    async def claim(self, key: bytes) -> bool:
        """True: it is the caller's to compile, and to `settle`. False, after a wait: look again."""
        if key in self.claims:
            await self.claims[key].wait()
            return False
        self.claims[key] = asyncio.Event()
        return True

    def settle(self, key: bytes, compiled: Compiled | None = None) -> None:
        """Keep what was made, if anything, and let the others on. A second time does nothing."""
        claim = self.claims.pop(key, None)
        if claim is not None:
            claim.set()
        if compiled is None or compiled.size > self.most:
            return
        self.kept[key] = compiled
        while sum(entry.size for entry in self.kept.values()) > self.most:
            self.kept.popitem(last=False)
