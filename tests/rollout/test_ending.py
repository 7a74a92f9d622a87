"""The end of rollouts: what conversations share is closed, whether its `close` is a coroutine or not."""

import asyncio
from types import SimpleNamespace

from agentrl.rollout.rollouts import Rollouts


def test_shared_things_end_after_the_engine() -> None:
    ended: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            ended.append(self.name)

    class Program(Part):
        def close(self) -> None:  # type: ignore[override]  # as programs of environments have it
            ended.append(self.name)

    shared = {"gateway": Part("gateway"), "program": Program("program"), "words": "nothing to close"}
    env = SimpleNamespace(shared=shared, interactions=Part("interactions"), tools=Part("tools"))
    rollouts = SimpleNamespace(
        env=env,
        sandbox=Part("sandbox"),
        scheduler=SimpleNamespace(scorer=Part("scorer")),
        tasks=Part("tasks"),
        engine=Part("engine"),
    )
    asyncio.run(Rollouts.end(rollouts))  # type: ignore[arg-type]
    assert ended == ["engine", "tasks", "scorer", "tools", "interactions", "sandbox", "program", "gateway"]
