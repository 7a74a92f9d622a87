"""Continuous batching over this package's own forward pass: gives waiting requests a sequence in the cache, and finds
the tokens that need not be computed again.

A step takes the next token of every running sequence and fills up to `max_tokens` with chunks of prompts, oldest
first. So a long prompt never delays decoding, and both share one read of the weights.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from agentrl.core.prefixes import common_length
from agentrl.engines.hf.adapters import AS_IS
from agentrl.engines.hf.batch import Chunk, pack
from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.forward import forward
from agentrl.engines.hf.runner import Emit, Request, draw
from agentrl.engines.hf.slot_pool import CachedSequence
from agentrl.engines.hf.weights import read_weights

log = logging.getLogger(__name__)

LOADED = 16
"""Adapters whose matrices stay joined."""
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


class SlotRunner:
    """Runs the Llama family. Raises projection.Unsupported for a module it does not know."""

    def __init__(self, module: Any, *, max_running: int, max_len: int, max_tokens: int, budget_bytes: int) -> None:
        self.max_running, self.max_tokens = max_running, max_tokens
        self.weights = lru_cache(LOADED)(partial(read_weights, module, max_len))
        shape = self.weights(AS_IS).shape
        budget = max(budget_bytes // shape.bytes_per_token, max_len)
        self.cache = KVCache(shape, budget=budget, max_len=max_len)
        self.taken: dict[Request, CachedSequence] = {}
        self.computed = 0
        """Tokens that went through a forward pass, in all."""
        self.reused = self.prompted = 0
        """Tokens of all prompts: those that were taken from the cache instead of computed, and all of them."""

    def step(self, requests: Sequence[Request], emit: Emit) -> None:
        with torch.inference_mode():
            self.fill(requests)
            chunks = self._chunks(requests)
            if not chunks:  # memory was short even for the only one, which starts over in the next step
                return
            batch = pack(chunks)
            logits = forward(self.weights(requests[0].adapter), batch)
            for chunk in chunks:
                chunk.sequence.cached = chunk.end
            self.computed += len(batch.tokens)
            owners = {sequence: request for request, sequence in self.taken.items()}
            drawing = [owners[sequence] for sequence in batch.finished]
            if drawing:
                emit(drawing, *draw(logits, drawing))

    def fill(self, requests: Sequence[Request]) -> None:
        """Give sequences to as many of the waiting `requests` as fit, in order; at most `max_running` of an adapter
        have one.

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

    def in_flight(self) -> Sequence[Request]:
        return list(self.taken)

    def reload(self) -> None:
        self.clear()
        self.weights.cache_clear()
        self.cache.shape = self.weights(AS_IS).shape

    def stats(self) -> dict[str, float]:
        cache = self.cache
        return {
            "cached_sequences": len(cache.sequences),
            "kv_bytes": cache.allocated * cache.shape.bytes_per_token,
            "computed_tokens": self.computed,
            "reused_tokens": self.reused,
            "prompt_tokens": self.prompted,
            "kv_used": sum(sequence.cached for sequence in cache.sequences),
            "kv_room": cache.budget,
        }

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

    def _chunks(self, requests: Sequence[Request]) -> list[Chunk]:
        """The chunks of the next pass: the next token of each running sequence, then prompts within the budget."""
        self._make_room()
        sequences = [self.taken[request] for request in requests if request in self.taken]
        decoding = [Chunk(sequence, 1) for sequence in sequences if len(sequence.tokens) - sequence.cached == 1]
        left = max(self.max_tokens - len(decoding), 1)
        prompts = []
        for sequence in sequences:
            count = min(len(sequence.tokens) - sequence.cached, left)
            if len(sequence.tokens) - sequence.cached > 1 and count > 0:
                prompts.append(Chunk(sequence, count))
                left -= count
        return decoding + prompts

    def _make_room(self) -> None:
        """Widen sequences that have outgrown their pool; when memory is short, the newest request starts over later."""
        cache = self.cache
        for request in list(self.taken):
            while (sequence := self.taken.get(request)) and not cache.widen(sequence, len(sequence.tokens)):
                latest = next(reversed(self.taken))
                log.debug("the KV cache is full: %s waits", latest.key)
                cache.drop(self.taken.pop(latest))
