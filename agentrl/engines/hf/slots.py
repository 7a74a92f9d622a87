"""Continuous batching over this package's own forward pass.

A step takes the next token of every running sequence and fills up to `max_tokens` with chunks of prompts, oldest
first. So a long prompt never delays decoding, and both share one read of the weights.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from agentrl.engines.hf.adapters import AS_IS
from agentrl.engines.hf.batch import Chunk, pack
from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.forward import forward
from agentrl.engines.hf.runner import Emit, Request, draw
from agentrl.engines.hf.slot_allocator import SlotAllocator
from agentrl.engines.hf.weights import read_weights

log = logging.getLogger(__name__)

LOADED = 16
"""Adapters whose matrices stay joined."""


class SlotRunner(SlotAllocator):
    """Runs the Llama family. Raises projection.Unsupported for a module it does not know."""

    def __init__(self, module: Any, *, max_running: int, max_len: int, max_tokens: int, budget_bytes: int) -> None:
        self.module = module
        self.max_len = max_len
        self.max_tokens = max_tokens
        self.weights = lru_cache(LOADED)(partial(read_weights, module, max_len))
        shape = self.weights(AS_IS).shape
        budget = max(budget_bytes // shape.bytes_per_token, max_len)
        super().__init__(KVCache(shape, budget=budget, max_len=max_len), max_running=max_running)
        self.computed = 0
        """Tokens that went through a forward pass, in all."""

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
                self.evict(latest)
