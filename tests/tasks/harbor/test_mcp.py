"""MCP servers of tasks in the built-in loop: real ones, as services over HTTP and as a command in the container."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.config.schema.rollout import Containers
from agentrl.engines.engine import Sampling
from agentrl.rollout.loops import ToolAgent
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks.harbor.folder import task_rows
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.gateway.test_programs import Scored
from tests.rollout.scripted import ScriptedEngine, calls, environment, says
from tests.sandbox.docker.engine import Engine
from tests.tasks.harbor.mcp_image import have_mcp_image
from tests.tasks.harbor.unpack import unpack

pytestmark = pytest.mark.docker
TOOLS = {"http-server": "keep", "sse-server": "keep", "command": "store"}


class ByTask(Scored):
    async def score(self, trajectory: Trajectory) -> None:
        """The reward is the task's."""


@pytest.fixture
def compose(engine: Engine, docker_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.have_compose()
    if folder := engine.env.get("DOCKER_CONFIG"):
        monkeypatch.setenv("DOCKER_CONFIG", folder)


async def run(rows: Sequence[Row], n: int = 1) -> tuple[list[Trajectory], ScriptedEngine]:
    def script(key: str, turn: int) -> str:
        kind = next(kind for kind in TOOLS if kind in key)
        word = "bean" if key.endswith("/0") else "pea"
        return says(calls(TOOLS[kind], f'{{"word": "{word}"}}'), "Done .")(key, turn)

    env, engine = environment(script, model_length=4096, prompt_length=2048, response_length=1024)
    tasks = TaskRunner(Containers(provider="docker"))
    scheduler = Scheduler(
        env=env, loop_for=lambda _: ToolAgent, scorer=ByTask(), max_concurrent=6, timeout=300, retries=0, tasks=tasks
    )
    try:
        return await scheduler.run(rows, n=n, sampling=Sampling(256, seed=1), tag="1"), engine
    finally:
        await tasks.close()
        await env.tools.close()


@pytest.mark.usefixtures("compose")
async def test_servers_of_tasks_serve_each_trajectory(engine: Engine, tmp_path: Path) -> None:
    """Tasks that differ, two trajectories each: the one that keeps the right word earns the reward."""
    folder = unpack("mcp", tmp_path / "tasks", image=have_mcp_image(engine, tmp_path / "image"))
    done, asked = await run(task_rows(str(folder)), n=2)
    assert [one.error for one in done] == [None] * 6
    for one in done:
        (schema,), (call,) = one.schemas, one.tool_calls
        kind = next(kind for kind in TOOLS if kind in one.key)
        assert schema["function"]["name"] == TOOLS[kind]
        assert TOOLS[kind] in asked.chat.decode(asked.prompts[one.key][0])
        assert (call.outcome, one.reward) == (Outcome.OK, float(one.sample == 0))
        assert re.fullmatch(rf"kept {'pea' if one.sample else 'bean'} at \d+", call.response)
        one.ledgers[0].check()
