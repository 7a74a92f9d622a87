"""Which waiting request gets a row of the cache next, and what it need not compute again."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.prefixes import common_length
from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.pool import Row
from agentrl.engines.hf.request import Request

WORTH_SHARING = 16
"""Copying fewer tokens than this, or waiting for them, costs more than computing them."""


@dataclass(frozen=True)
class Match:
    """A row whose first `count` tokens are the request's as well."""

    row: Row | None
    count: int

    @property
    def ready(self) -> int:
        """How many of them have keys and values by now."""
        return 0 if self.row is None else min(self.count, self.row.cached)


class Seats:
    """Gives rows to requests in order, and takes them back."""

    def __init__(self, cache: KVCache, *, max_running: int) -> None:
        self.cache = cache
        self.max_running = max_running
        self.taken: dict[Request, Row] = {}
        self.reused = 0
        """Tokens that were not computed again, in all."""

    def fill(self, requests: Sequence[Request]) -> None:
        """Seat as many of the waiting `requests` as fit, in order.

        A request that shares a long prefix with one whose prompt is still being computed waits for it: the requests
        of one group, arriving together, compute their prompt once.
        """
        waiting = [request for request in requests if request not in self.taken and not request.done]
        for i, request in enumerate(waiting):
            if len(self.taken) >= self.max_running:
                return
            own, best = self._matches(request)
            if best.count - max(best.ready, own.count) >= WORTH_SHARING:
                continue
            room = min(self.max_running - len(self.taken), len(waiting) - i)
            if not self._seat(request, own, best, room):
                return

    def leave(self, request: Request) -> None:
        """The request is over; its row rests."""
        row = self.taken.pop(request, None)
        if row is not None:
            self.cache.rest(row)

    def unseat(self, request: Request) -> None:
        """Take the row from a running request, which waits again and starts over."""
        self.cache.drop(self.taken.pop(request))

    def forget(self, key: str) -> None:
        """Drop the resting rows of `key`, and all memory with the last row."""
        for row in [row for row in self.cache.rows if row.key == key and not row.running]:
            self.cache.drop(row)
        if not self.cache.rows:
            self.cache.clear()

    def clear(self) -> None:
        """Drop everything; running requests wait again."""
        self.taken.clear()
        self.cache.clear()

    def _matches(self, request: Request) -> tuple[Match, Match]:
        """The key's own resting row, and anyone's row that begins most like the request."""
        limit = len(request.tokens) - 1  # the last token must be computed: its logits are what we are after
        own = Match(None, 0)
        for row in self.cache.rows:
            if row.key == request.key and not row.running:
                count = common_length(row.tokens, request.tokens, min(limit, row.cached))
                own = max(own, Match(row, count), key=lambda match: (match.row is not None, match.count))
        found = self.cache.prefixes.find(request.tokens)
        if found is None or found is own.row:
            return own, Match(None, 0)
        # A running row will have computed all of its tokens soon, a resting one never more than it has.
        count = common_length(found.tokens, request.tokens, limit if found.running else min(limit, found.cached))
        return own, Match(found, count)

    def _seat(self, request: Request, own: Match, best: Match, expected: int) -> bool:
        length = len(request.tokens) + 1
        row = own.row
        if row is not None:
            row.running = True
            row.tokens, row.cached = request.tokens, own.count
            if not self.cache.widen(row, length):
                self.cache.rest(row)
                return False
        else:
            row = self.cache.acquire(request.key, request.tokens, length, expected=expected)
        if row is None:
            return False
        donor = best.row
        # Making room may have evicted the donor.
        if donor in self.cache.rows and donor is not None and best.ready - own.count >= WORTH_SHARING:
            self.cache.share(donor, row, best.ready)
        self.cache.prefixes.add(row)
        self.reused += row.cached
        self.taken[request] = row
        request.begin()
        return True
