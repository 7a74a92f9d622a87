"""The engine without threads or asyncio: active requests, when they run, how they end.

Invariants:
- everything here happens in one thread;
- adapters take turns; the requests of one are served in order of arrival; deterministic mode orders them by key
  instead, and runs only while every open key has a request, so that timing does not decide which share a batch;
- keys and values are dropped with the weights that computed them;
- a request leaves `active` exactly once, through `_end`.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import count

from agentrl.core.errors import InfraError
from agentrl.engines.hf.runner import Request, Runner
from agentrl.training.model.adapter import first_line

log = logging.getLogger(__name__)

TURN = 64


class Core:
    """The active requests; `runner` draws their tokens."""

    def __init__(self, runner: Runner, *, deterministic: bool, on_end: Callable[[Request], None]) -> None:
        self.runner = runner
        self.deterministic = deterministic
        self.on_end = on_end
        self.active: list[Request] = []
        self.open_keys: set[str] = set()
        self.version = 0
        self.paused = False
        self.asleep = False
        self.interrupted = False
        """Weights or state changed since the step began, so it must stop."""
        self.drawn = 0
        self.failures = 0

    @property
    def ready(self) -> bool:
        """Whether a step can run now."""
        if self.paused or self.asleep or not self.active:
            return False
        return not self.deterministic or self.open_keys <= {request.key for request in self.active}

    def step(self, between: Callable[[], None]) -> None:
        """Run the model once for the requests of one adapter (the fallback: a whole batch, or `TURN` tokens where other
        adapters wait); `between` is called after each token.

        An exception of the model's code ends the requests in flight with InfraError; the engine continues.
        """
        self.interrupted = False
        turn, passes = self.active[0].adapter, count(1)
        mine = [request for request in self.active if request.adapter is turn]

        def emit(requests: Sequence[Request], tokens: Sequence[int], logprobs: Sequence[float]) -> bool:
            for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
                request.append(token, logprob, self.version)
                self.drawn += 1
                if request.done:
                    self._end(request)
            between()
            alone = all(request.adapter is turn for request in self.active)
            return not self.interrupted and (alone or next(passes) < TURN)

        try:
            self.runner.step(mine, emit)
        except Exception as error:
            log.exception("hf engine: the forward pass failed")
            self._fail(mine, error)
        self.active.sort(key=lambda request: request.adapter is turn)  # stable: adapters take turns

    def submit(self, request: Request) -> None:
        self.active.append(request)
        if self.deterministic:
            self.active.sort(key=lambda r: r.key)  # stable: requests of one key stay in order of arrival

    def open(self, key: str) -> None:
        self.open_keys.add(key)

    def release(self, key: str) -> None:
        self.open_keys.discard(key)
        self.end([request for request in self.active if request.key == key])
        self.runner.forget(key)

    def abort(self) -> None:
        self.end(list(self.active))

    def pause(self) -> None:
        self.paused = self.interrupted = True

    def resume(self) -> None:
        self.paused = False

    def update_weights(self, version: int) -> None:
        self.interrupted = True
        self.runner.reload()
        self.version = version

    def sleep(self) -> None:
        self.asleep = self.interrupted = True
        self.runner.clear()

    def wake(self) -> None:
        self.asleep = False

    def shut(self, error: Exception) -> None:
        """End every request with `error`."""
        self.interrupted = True
        self._raise(list(self.active), error)
        self.open_keys.clear()
        self.runner.clear()

    def health(self) -> dict[str, float]:
        keys = {request.key for request in self.active}
        running = sum(not request.done for request in self.runner.in_flight())
        return {
            "running": running,
            "waiting": len(self.active) - running,
            "open_keys": len(self.open_keys),
            "awaited_keys": len(self.open_keys - keys),
            "drawn_tokens": self.drawn,
            "weight_version": self.version,
            "failures": self.failures,
            **self.runner.stats(),
        }

    def end(self, requests: Sequence[Request]) -> None:
        """End requests that are not done: each keeps the tokens drawn so far."""
        for request in requests:
            if not request.done:
                request.finish_reason = "abort"
                self._end(request)

    def _raise(self, requests: Sequence[Request], error: Exception) -> None:
        for request in requests:
            request.error = error
            self._end(request)

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        self.failures += 1
        short = f"hf engine: {type(error).__name__}: {first_line(error)}"
        active, running = [request for request in requests if not request.done], self.runner.in_flight()
        self._raise([request for request in active if request in running] or active, InfraError(short))
        self.runner.clear()

    def _end(self, request: Request) -> None:
        self.active.remove(request)
        self.on_end(request)
        self.runner.leave(request)
