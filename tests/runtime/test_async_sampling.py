"""A server that comes back while the policy is updated gets its weights after the update."""

import threading
from collections.abc import Sequence
from contextlib import closing
from unittest.mock import AsyncMock, Mock

from agentrl.config.schema import Rollout
from agentrl.core.loop_thread import LoopThread
from agentrl.engines.servers import RemoteEngine, Replica
from agentrl.rollout.async_sampling import AsyncSampling
from agentrl.rollout.pausable_engine import PausableEngine


class Sent(RemoteEngine):
    """An engine without servers, which tells when weights are sent."""

    def __init__(self) -> None:
        super().__init__(Mock(settings=Mock(rollout=Rollout(), max_model_len=1)), [], None)
        self.sent = threading.Event()

    async def _send_weights(self, replicas: Sequence[Replica], version: int) -> None:
        self.sent.set()


def test_weights_are_not_read_while_they_change() -> None:
    engine, replica = Sent(), Mock(starts=0, server=None, ready=AsyncMock())
    with closing(LoopThread()) as thread, closing(AsyncSampling(thread, PausableEngine(engine), engine)) as sampling:
        with sampling.updating():
            restarted = thread.start(engine.pool.restart(replica))  # type: ignore[arg-type]
            sampling.activity()  # the loop has seen it
            assert not engine.sent.is_set()
        restarted.result()
        assert engine.sent.is_set()
