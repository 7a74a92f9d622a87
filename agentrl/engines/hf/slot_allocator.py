"""Gives waiting requests a sequence in the cache, and finds the tokens that need not be computed again."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.prefixes import common_length
from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.runner import Request
from agentrl.engines.hf.slot_pool import CachedSequence

MIN_SHARED_TOKENS = 16
"""Copying fewer tokens than this, or waiting for them, costs more than computing them."""


@dataclass(frozen=True)
class Match:
    """A sequence whose first `count` tokens equal the request's."""

    sequence: CachedSequence | None
    count: int

    @property
    def ready(self) -> int:
        """How many of them have keys and values already."""
        return 0 if self.sequence is None else min(self.count, self.sequence.cached)


class SlotAllocator:
    """Gives sequences to requests in order, and takes them back.

    Invariant: at most `max_running` requests of an adapter have one.
    """

    def __init__(self, cache: KVCache, *, max_running: int) -> None:
        self.cache = cache
        self.max_running = max_running
        self.taken: dict[Request, CachedSequence] = {}
        self.reused = self.prompted = 0
        """Tokens of all prompts: those that were taken from the cache instead of computed, and all of them."""

    def fill(self, requests: Sequence[Request]) -> None:
        """Give sequences to as many of the waiting `requests` as fit, in order.

        A request that shares a long prefix with one whose prompt is still being computed waits for it. So the requests
        of a group, which arrive together, compute their prompt once.
        """
        waiting = [request for request in requests if request not in self.taken and not request.done]
        free = self.max_running - sum(request in self.taken for request in requests)
        for i, request in enumerate(waiting):
            if free <= 0:
                return
            own, best = self._matches(request)
            if best.count - max(best.ready, own.count) >= MIN_SHARED_TOKENS:
                continue
            if not self._assign(request, own, best, min(free, len(waiting) - i)):
                return
            free -= 1

    def leave(self, request: Request) -> None:
        """The request is over; its sequence becomes idle."""
        sequence = self.taken.pop(request, None)
        if sequence is not None:
            self.cache.rest(sequence)
            self.cache.prefixes.add(sequence)  # with its answer, which a later prompt may have

    def evict(self, request: Request) -> None:
        """Take the sequence from a running request, which then waits and starts over."""
        self.cache.drop(self.taken.pop(request))

    def forget(self, key: str) -> None:
        """Drop the idle sequences of `key`, and all memory with the last sequence."""
        for sequence in [other for other in self.cache.sequences if other.key == key and not other.running]:
            self.cache.drop(sequence)
        if not self.cache.sequences:
            self.cache.clear()

    def clear(self) -> None:
        """Drop everything; running requests wait again."""
        self.taken.clear()
        self.cache.clear()

    def _matches(self, request: Request) -> tuple[Match, Match]:
        """The key's own idle sequence, and the sequence of any key with the longest common prefix."""
        limit = len(request.tokens) - 1  # the last token is always computed: the next one is drawn from its logits
        own = Match(None, 0)
        for sequence in self.cache.sequences:
            if sequence.key == request.key and sequence.adapter is request.adapter and not sequence.running:
                count = common_length(sequence.tokens, request.tokens, min(limit, sequence.cached))
                own = max(own, Match(sequence, count), key=lambda match: (match.sequence is not None, match.count))
        found = self.cache.prefixes.find(request.tokens, request.adapter)
        if found is None or found is own.sequence or found.adapter is not request.adapter:
            return own, Match(None, 0)
        # A running sequence will soon have computed all of its tokens; an idle one computes no more.
        count = common_length(found.tokens, request.tokens, limit if found.running else min(limit, found.cached))
        return own, Match(found, count)

    def _assign(self, request: Request, own: Match, best: Match, expected: int) -> bool:
        length = len(request.tokens) + 1
        sequence = own.sequence
        if sequence is not None:
            sequence.running = True
            sequence.tokens, sequence.cached = request.tokens, own.count
            if not self.cache.widen(sequence, length):
                self.cache.rest(sequence)
                return False
        else:
            sequence = self.cache.acquire(request.key, request.tokens, length, expected=expected)
        if sequence is None:
            return False
        sequence.adapter = request.adapter
        donor = best.sequence
        # Making room may have evicted the donor.
        if donor in self.cache.sequences and donor is not None and best.ready - own.count >= MIN_SHARED_TOKENS:
            self.cache.share(donor, sequence, best.ready)
        self.cache.prefixes.add(sequence)
        self.reused += sequence.cached
        self.prompted += len(request.tokens)
        self.taken[request] = sequence
        request.begin()
        return True
