"""A server that comes back while the policy is updated gets its weights after the update."""

import threading
from contextlib import closing
from typing import Any
from unittest.mock import AsyncMock, Mock

from agentrl.engines.servers import RemoteEngine
from agentrl.runtime.loop_thread import LoopThread
from agentrl.runtime.sampling_ahead import SamplingAhead


class Transport:
    """Notes that weights were read."""

    name = "noting"

    def __init__(self) -> None:
        self.read = threading.Event()

    async def push(self, replicas: object) -> None:
        self.read.set()

    async def close(self) -> None: ...


def test_weights_are_not_read_while_they_change() -> None:
    transport, replica = Transport(), Mock(starts=0, server=None, asleep=False, ready=AsyncMock())
    backend: Any = AsyncMock()
    engine = RemoteEngine(backend, [replica], transport, max_model_len=1)
    with closing(LoopThread()) as runner, closing(SamplingAhead(runner, engine, engine)) as ahead:
        with ahead.updating():
            restarted = runner.start(engine.pool.restart(replica))  # type: ignore[arg-type]
            runner.run(ahead.engine.activity())  # the loop has seen it
            assert not transport.read.is_set()
        restarted.result()
        assert transport.read.is_set()
