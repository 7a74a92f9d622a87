"""Continuous batching over this package's own forward pass.

A step takes the next token of every running sequence and fills up to `max_tokens` with pieces of prompts, oldest
first: decoding is never held up by a long prompt, and prompts ride along with the weights that decoding reads.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from agentrl.engines.hf.batch import Piece, pack
from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.forward import forward
from agentrl.engines.hf.request import Request
from agentrl.engines.hf.runner import Emit, draw
from agentrl.engines.hf.seats import Seats
from agentrl.engines.hf.weights import read_weights

log = logging.getLogger(__name__)


class SlotRunner:
    """Runs the Llama family. Raises projection.Unsupported for a module it does not know."""

    def __init__(self, module: Any, *, max_running: int, max_len: int, max_tokens: int, budget_bytes: int) -> None:
        self.module = module
        self.max_len = max_len
        self.max_tokens = max_tokens
        self.weights = read_weights(module, max_len)
        shape = self.weights.shape
        budget = max(budget_bytes // shape.bytes_per_token, max_len)
        self.seats = Seats(KVCache(shape, budget=budget, max_len=max_len), max_running=max_running)
        self.computed = 0
        """Tokens that went through a forward pass, in all."""

    def step(self, requests: Sequence[Request], emit: Emit) -> None:
        with torch.inference_mode():
            self.seats.fill(requests)
            pieces = self._pieces()
            if not pieces:  # memory was short even for the only one, which starts over in the next step
                return
            batch = pack(pieces)
            logits = forward(self.weights, batch)
            for piece in pieces:
                piece.row.cached = piece.end
            self.computed += len(batch.tokens)
            owners = {row: request for request, row in self.seats.taken.items()}
            drawing = [owners[row] for row in batch.finished]
            if drawing:
                emit(drawing, *draw(logits, drawing))

    def in_flight(self) -> Sequence[Request]:
        return list(self.seats.taken)

    def leave(self, request: Request) -> None:
        self.seats.leave(request)

    def forget(self, key: str) -> None:
        self.seats.forget(key)

    def clear(self) -> None:
        self.seats.clear()

    def reload(self) -> None:
        self.clear()
        self.weights = read_weights(self.module, self.max_len)

    def stats(self) -> dict[str, float]:
        cache = self.seats.cache
        return {
            "cached_sequences": len(cache.rows),
            "kv_bytes": cache.allocated * cache.shape.bytes_per_token,
            "computed_tokens": self.computed,
            "reused_tokens": self.seats.reused,
        }

    def _pieces(self) -> list[Piece]:
        """What goes into the next pass: everyone's single next token, then prompts while the budget lasts."""
        self._make_room()
        rows = list(self.seats.taken.values())
        decoding = [Piece(row, 1) for row in rows if len(row.tokens) - row.cached == 1]
        left = max(self.max_tokens - len(decoding), 1)
        prompts = []
        for row in rows:
            count = min(len(row.tokens) - row.cached, left)
            if len(row.tokens) - row.cached > 1 and count > 0:
                prompts.append(Piece(row, count))
                left -= count
        return decoding + prompts

    def _make_room(self) -> None:
        """Widen rows that reach their pool's end; where memory is short the latest comer starts over later."""
        cache = self.seats.cache
        for request in list(self.seats.taken):
            while (row := self.seats.taken.get(request)) and not cache.widen(row, len(row.tokens)):
                latest = next(reversed(self.seats.taken))
                log.debug("the KV cache is full: %s waits", latest.key)
                self.seats.unseat(latest)
