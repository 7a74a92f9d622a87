"""A server that comes back while the policy is updated gets its weights after the update."""

import threading
from contextlib import closing

from agentrl.engines.servers import RemoteEngine
from agentrl.runtime.loop_thread import LoopThread
from agentrl.runtime.sampling_ahead import SamplingAhead


class Pool:
    """Has the `refresh` of a pool of replicas."""

    def __init__(self) -> None:
        self.refreshed = threading.Event()

    async def refresh(self, replica: object) -> None:
        self.refreshed.set()


def ahead_of(runner: LoopThread, engine: RemoteEngine) -> SamplingAhead:
    return SamplingAhead(runner, engine, engine)


def test_weights_are_not_read_while_they_change() -> None:
    engine = RemoteEngine.__new__(RemoteEngine)
    engine.pool = pool = Pool()  # type: ignore[assignment]
    with closing(LoopThread()) as runner, closing(ahead_of(runner, engine)) as ahead:
        with ahead.updating():
            restarted = runner.start(engine.pool.refresh(None))  # type: ignore[arg-type]
            runner.run(ahead.engine.activity())  # the loop has seen it
            assert not pool.refreshed.is_set()
        restarted.result()
        assert pool.refreshed.is_set()
