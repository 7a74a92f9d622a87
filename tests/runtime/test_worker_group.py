"""Warnings of a worker's own process."""

import logging
from contextlib import ExitStack

import pytest

from agentrl.config.schema import Config

pytestmark = pytest.mark.integration


@pytest.mark.prevents("a warning of a rank under Ray is in no log that a person reads")
def test_what_the_first_worker_warns_of_is_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("ray")
    from agentrl.config.schema import RayInit
    from agentrl.runtime.ray.cluster import connect
    from agentrl.runtime.ray.worker import Worker
    from agentrl.runtime.ray.worker_group import spawn

    class Slow(Worker):
        def work(self, rank: int) -> int:
            logging.getLogger("agentrl.training.x").warning("rank %d is slow", rank)
            logging.getLogger("agentrl.training.x").info("it is")
            return rank

    with ExitStack() as stack:
        connect(RayInit(address="local", num_cpus=2), stack)
        group = spawn(Slow, Config(), "trainer", 1, 2, gpus=False, stack=stack)
        assert group.each("work", [(0,), (1,)]) == [0, 1]
        assert group.call("work", 0) == 0
    assert [(r.name, r.getMessage()) for r in caplog.records if "rank" in r.getMessage()] == [
        ("agentrl.training.x", "rank 0 is slow")
    ] * 2
