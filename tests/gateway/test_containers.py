"""Agent programs in containers: reached, limited, read, and always removed."""

import asyncio
import os
import subprocess
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import docker
import pytest

from agentrl.containers.docker.reaper import OWNER, owner
from agentrl.core.errors import InfraError, UserError
from agentrl.trajectory.trajectory import Outcome
from tests.gateway.test_programs import play, written
from tests.rollout.scripted import says
from tests.sandbox.docker.engine import Engine

ASK = r"""
address=${OPENAI_BASE_URL#http://}; host=${address%%/*}; body='{"messages": [{"role": "user", "content": "x"}]}'
exec 3<>/dev/tcp/${host%:*}/${host#*:}
printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' \
    "${address#*/}" ${#body} "$body" >&3
cat <&3 >$FOLDER/answer.txt
grep -o 'answer is 5' $FOLDER/answer.txt
"""


@pytest.fixture
def client(docker_host: None) -> Any:
    return docker.from_env()


def entry(folder: Path, engine: Engine, code: str, **more: object) -> str:
    """The path of a YAML file with one agent: `code`, in a container."""
    path = written(folder, "", command="[bash, agent.sh]", image=engine.base(), env='{FOLDER: "{folder}"}', **more)
    text = Path(path).read_text()
    lines = "\n".join(f"      {line}" for line in code.splitlines())
    Path(path).write_text(text.replace("[bash, agent.sh]", f"\n    - bash\n    - -c\n    - |\n{lines}"))
    return path


def of(pid: int) -> dict[str, str]:
    """What a process has: that of an ended one of an earlier test may still be on its way out."""
    return {"label": f"{OWNER}={owner(pid)}"}


def left(client: Any, its: dict[str, str] | None = None) -> list[Any]:
    """Containers: of this process, or with that label."""
    return list(client.containers.list(all=True, filters=its or of(os.getpid()), ignore_removed=True))


def networks(client: Any) -> dict[str, Any]:
    return {network.name: network for network in client.networks.list(filters=of(os.getpid()))}


@pytest.mark.docker
async def test_a_container_is_recorded_and_removed(tmp_path: Path, engine: Engine, client: Any) -> None:
    code = ASK + "ln -s /etc/passwd $FOLDER/link; cd /sys/fs/cgroup; "
    code += "cat memory.max pids.max 2>/dev/null || cat memory/memory.limit_in_bytes pids/pids.max"  # version 2 or 1
    path, before = entry(tmp_path, engine, code, memory="64m", processes=40), networks(client)
    trajectory = await play(path, says("The answer is 5 ."))
    about = trajectory.extra["program"]
    assert (about["exit_code"], about["output"].split("\n")[:-1]) == (0, ["answer is 5", str(64 << 20), "40"])
    assert os.listdir(about["folder"]) == ["answer.txt"]
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert left(client) == []
    (name,) = networks(client).keys() - before  # earlier event loops of this process have their own
    network = networks(client)[name]
    network.reload()
    assert network.attrs["Internal"]


@pytest.mark.docker
async def test_ends_are_outcomes_and_leave_nothing(tmp_path: Path, engine: Engine, client: Any) -> None:
    with pytest.raises(InfraError, match="ended with code 3: no luck"):
        await play(entry(tmp_path, engine, ASK + "echo no luck; exit 3"), says("Yes"))
    late = entry(tmp_path, engine, ASK + "sleep 600", timeout=2, exit_codes="{timeout: model_error}")
    trajectory = await play(late, says("Yes"))
    assert (trajectory.outcome, trajectory.finish) == (Outcome.MODEL_ERROR, "timeout")
    task = asyncio.create_task(play(entry(tmp_path, engine, ASK + "sleep 600"), says("Yes")))
    while not left(client):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(client) == []
    with pytest.raises(UserError, match="network: mine is not there"):
        await play(entry(tmp_path, engine, ASK, network="mine"), says())
    with pytest.raises(UserError, match="image: 127.0.0.1:1/none is not there and cannot be pulled"):
        await play(written(tmp_path, "", command="x", image="127.0.0.1:1/none"), says())


@pytest.mark.prevents("containers, networks or processes outlive a killed run; a command outlives its timeout")
@pytest.mark.docker
def test_nothing_outlives_a_killed_trainer(tmp_path: Path, engine: Engine, client: Any) -> None:
    path = entry(tmp_path, engine, ASK + "sleep 600")
    trainer = get_context("fork").Process(target=lambda: asyncio.run(play(path, says("Yes"))))
    trainer.start()
    its = of(trainer.pid or 0)
    assert _comes(lambda: left(client, its))
    assert client.networks.list(filters=its)
    trainer.kill()
    trainer.join()
    assert _comes(lambda: not left(client, its) and not client.networks.list(filters=its))


@pytest.mark.docker
async def test_the_next_run_removes_what_was_left(tmp_path: Path, engine: Engine, client: Any) -> None:
    ended = subprocess.Popen(["true"])  # noqa: ASYNC220
    ended.wait()
    labels = {OWNER: f"{os.uname().nodename} {ended.pid} 1", "agentrl.run": "old"}
    its = {"label": "agentrl.run=old"}
    client.containers.create(engine.base(), ["true"], labels=labels)
    assert left(client, its)
    await play(entry(tmp_path, engine, ASK), says("The answer is 5 ."))
    assert left(client, its) == []


def _comes(condition: Any) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.1)
    return False
