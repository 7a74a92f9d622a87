"""Agent programs in, and beside, the container of their row."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agentrl.config.schema.rollout import Containers
from agentrl.core.errors import UserError
from agentrl.core.points import CONTAINER_PROVIDERS, TASK_FORMATS, container_provider, task_format
from agentrl.engines.engine import Sampling
from agentrl.gateway.loop import about
from agentrl.rollout.loops import loop_class
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks.format import TaskArguments
from agentrl.tasks.plain import PlainContainer
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.gateway.test_programs import ASK, Scored, written
from tests.registries import scoped
from tests.rollout.scripted import environment, row, says
from tests.sandbox.docker.engine import Engine
from tests.tasks.local_provider import ROOT, LocalProvider

pytestmark = pytest.mark.integration

BY_BASH = r"""
address=${OPENAI_BASE_URL#http://}; host=${address%%/*}; body='{"messages": [{"role": "user", "content": "x"}]}'
exec 3<>/dev/tcp/${host%:*}/${host#*:}
printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    "${address#*/}" ${#body} "$body" >&3
grep -o 'answer is 5' <&3 > answer
"""


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ROOT, str(tmp_path))
    with scoped(CONTAINER_PROVIDERS):
        container_provider("local")(LocalProvider)
        yield


async def run(path: str, *rows: Row, provider: str = "local") -> list[Trajectory]:
    env, _ = environment(says("The answer is 5 .", "Sure ."), model_length=2048)
    kind = loop_class("mine", path)
    tasks = TaskRunner(Containers(provider=provider))
    scheduler = Scheduler(
        env=env, loop_for=lambda _: kind, scorer=Scored(), max_concurrent=4, timeout=60, retries=0, tasks=tasks
    )
    try:
        return await scheduler.run(rows, n=1, sampling=Sampling(64, seed=1), tag="1")
    finally:
        await tasks.close()


async def test_a_program_runs_in_the_container_of_its_row(tmp_path: Path) -> None:
    path = written(tmp_path, "", command="python3 in.py {prompt}", container="task")
    code = ASK + 'open("answer", "w").write(ask(sys.argv[1]))\n'
    contained = row(container={"set_up": f"cat > in.py <<'END'\n{code}\nEND", "verify": "cat answer >&2; echo 0.5"})
    (done,) = await run(path, contained)
    assert (done.outcome, done.turns, done.reward) == (Outcome.OK, 1, 1.0)  # Scored's
    assert done.extra["task"]["output"] == "0.5\nThe answer is 5 ."
    assert done.extra["program"]["exit_code"] == 0
    done.ledgers[0].check()


async def test_a_program_beside_the_container_knows_its_name(tmp_path: Path) -> None:
    code = f'ask("x")\nopen("{tmp_path}/" + sys.argv[1] + "/answer", "w").write("5")\n'
    path = written(tmp_path, code, command="python3 agent.py {container}")
    (done,) = await run(path, row(container={"verify": "cat answer"}))
    assert done.extra["task"]["output"] == "5"


async def test_a_program_gets_servers_and_skills_of_its_task(tmp_path: Path) -> None:
    class Offering(PlainContainer):
        offers: ClassVar = {"mcp_servers": {"a": {"type": "http", "url": "http://a:1/mcp"}}, "skills": "/skills"}

        def __init__(self, arguments: TaskArguments) -> None:
            super().__init__({"verify": "cat answer"})

    with scoped(TASK_FORMATS):
        task_format("offering")(Offering)
        code = f'ask("x")\nopen("{tmp_path}/" + sys.argv[1] + "/answer", "w").write(" ".join(sys.argv[2:]))\n'
        path = written(tmp_path, code, command="python3 agent.py {container} {mcp} {skills}")
        (done,) = await run(path, row(task={"format": "offering"}))
    servers, _, skills = done.extra["task"]["output"].rpartition(" ")
    assert json.loads(servers) == {"mcpServers": Offering.offers["mcp_servers"]}
    assert skills == "/skills"


@pytest.mark.prevents("an agent program reads its row to learn how it is verified")
async def test_an_agent_does_not_know_how_its_task_is_verified() -> None:
    hidden = row(container={"verify": "test -e answer"}, index=3)
    assert about(hidden)["extra_info"] == {"index": 3}
    named = row(task="arithmetic")
    assert about(named)["extra_info"] == {"task": "arithmetic"}


async def test_what_does_not_go_together_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "", container="task")
    with pytest.raises(UserError, match="agent mine: container: task: r:0 has no container; give the row"):
        await run(path, row())
    for more in ({"container": "mine"}, {"container": "task", "image": "x"}):
        with pytest.raises(UserError, match="mine: container: write `container: task`, and a command"):
            loop_class("mine", written(tmp_path, "", **more))


@pytest.mark.docker
async def test_a_program_in_docker_reaches_the_gateway_alone(tmp_path: Path, engine: Engine, docker_host: None) -> None:
    path = written(tmp_path, "", command="bash agent.sh", container="task")
    set_up = f"cat > agent.sh <<'END'\n{BY_BASH}\nEND"
    verify = "timeout 3 bash -c 'exec 3<>/dev/tcp/1.1.1.1/80' && echo out; cat answer >&2; grep -q 5 answer"
    contained = row(container={"image": engine.base(), "workdir": "/tmp", "set_up": set_up, "verify": verify})
    (done,) = await run(path, contained, provider="docker")
    assert done.error is None
    assert done.extra["task"]["output"] == "answer is 5\n"


@pytest.mark.docker
async def test_a_program_beside_reaches_the_container_by_docker_exec(
    tmp_path: Path, engine: Engine, docker_host: None
) -> None:
    code = 'ask("x")\nimport subprocess\n'
    code += 'subprocess.run(["docker", "exec", sys.argv[1], "touch", "/answer"], check=True)\n'
    path = written(tmp_path, code, command="python3 agent.py {container}")
    verify = "test -e /answer"
    (done,) = await run(path, row(container={"image": engine.base(), "verify": verify}), provider="docker")
    assert (done.error, done.extra["program"]["exit_code"]) == (None, 0)
    assert not os.path.exists("/answer")  # noqa: ASYNC240
