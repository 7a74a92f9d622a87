"""No time limit of a conversation counts our own pauses; each counts the conversation's own work."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.containers.contract import Done
from agentrl.core.clocks import now, queued, time_limit, uncounted
from agentrl.engines.engine import Generation, Sampling
from agentrl.environments.outside import OutsideAgent
from agentrl.environments.rows import environment_rows
from agentrl.gateway import loop as programs
from agentrl.gateway.process import run_command
from agentrl.rollout.attempt import attempt
from agentrl.rollout.loops import AgentLoop, RolloutContext, loop_class
from agentrl.rollout.pausable_engine import PausableEngine
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import environment, row, says

pytestmark = pytest.mark.integration

LONG = 50_000.0
SHORT = 5_000.0
"""The limits of these tests, whose clock jumps by LONG."""
CODE = """
import json, urllib.request

def main(openai_url, key):
    for _ in range(2):
        body = {"messages": [{"role": "user", "content": "What is 2 + 3 ?"}]}
        headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        url = openai_url + "/chat/completions"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers))
"""
COMMAND = "\nimport os\nmain(os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY'])\n"
ENVIRONMENTS = Path(__file__).parents[1] / "environments/outside"

Jump = Callable[[float], None]


@pytest.fixture
async def jump() -> Jump:
    """Moves the clock of the event loop."""
    loop, ahead = asyncio.get_running_loop(), [0.0]
    real = loop.time
    loop.time = lambda: real() + ahead[0]  # type: ignore[method-assign]
    return lambda seconds: ahead.__setitem__(0, ahead[0] + seconds)


class Stopping:
    """An engine that draws nothing while it is stopped, as one that shares the trainer's device."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.asked, self.runs = inner, asyncio.Event(), asyncio.Event()
        self.runs.set()

    async def generate(self, token_ids: Any, sampling: Sampling, **others: Any) -> Generation:
        self.asked.set()
        await asyncio.sleep(0.02)
        await self.runs.wait()
        made: Generation = await self.inner.generate(token_ids, sampling, **others)
        return made

    async def pause(self) -> None:
        self.runs.clear()

    async def resume(self) -> None:
        self.runs.set()

    sleep, wake = pause, resume

    async def update_weights(self, version: int) -> None:
        await self.resume()


class Twice(AgentLoop):
    """Two turns of the model's."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        episode = self.episode(trajectory, sampling, [])
        episode.begin()
        await episode.generate()
        await episode.generate()


def stopping(*, partial: bool = True) -> tuple[RolloutContext, PausableEngine, Stopping]:
    env, scripted = environment(says("5", "8"), response_length=4000, prompt_length=4000, model_length=8000)
    inner = Stopping(scripted)
    engine = PausableEngine(inner, partial=partial)  # type: ignore[arg-type]
    return replace(env, engine=engine), engine, inner


async def played(
    kind: type[AgentLoop], jump: Jump, *, at: Row, own: float | None, update: str, **options: Any
) -> Trajectory:
    """A trajectory in the middle of which the policy is updated for a long time."""
    env, engine, inner = stopping(**options)
    trajectory = Trajectory(at, "1/a/0", 0)
    job = asyncio.create_task(attempt(lambda: kind(env), trajectory, Sampling(64), SHORT, own))
    await inner.asked.wait()
    await getattr(engine, update)()
    jump(LONG)
    await asyncio.sleep(0.05)
    await (engine.resume() if update == "pause" else engine.update_weights(1))
    await job
    return trajectory


@pytest.mark.prevents(
    "updates of the policy count against the time limit of a conversation, so that long ones are lost"
)
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("own", [None, SHORT])
@pytest.mark.parametrize("update", ["pause", "sleep"])
async def test_no_limit_counts_an_update(update: str, own: float | None, partial: bool, jump: Jump) -> None:
    made = await played(Twice, jump, at=row(), own=own, update=update, partial=partial)
    assert (made.outcome, made.finish, made.turns) == ("ok", "stop", 2)


@pytest.mark.parametrize("own", [None, SHORT])
async def test_a_limit_counts_what_a_conversation_does_during_a_pause(own: float | None, jump: Jump) -> None:
    class Waits(Twice):
        async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
            await super().run(trajectory, sampling)
            jump(LONG)
            await asyncio.sleep(60)

    made = await played(Waits, jump, at=row(), own=own, update="pause")
    assert (made.turns, made.finish, made.outcome) == (2, "timeout", "infra_error" if own is None else "model_error")


class Here:
    """A container that is this machine."""

    name = "here"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def host(self) -> str:
        return "127.0.0.1"

    async def exec(self, words: list[str], *, env: dict[str, str], timeout: float) -> Done:
        ran = run_command([sys.executable, *words[1:]], self.folder, self.folder / "log", env, asyncio.Event().wait())
        async with asyncio.timeout(timeout):
            return Done((await ran).code, "", "", 0.0)


ENTRIES = {
    "command": {"command": "python3 agent.py"},
    "function": {"python": "agent.main"},
    "container": {"command": "python3 AGENT", "container": "task"},
}


@pytest.mark.parametrize("kind", ENTRIES)
async def test_a_program_that_waits_for_a_paused_engine_is_not_ended(kind: str, jump: Jump, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(CODE + COMMAND * (kind != "function"))
    entry = {"name": "mine", "timeout": SHORT} | ENTRIES[kind]
    lines = "\n  ".join(f"{key}: {value}" for key, value in entry.items())
    (tmp_path / "agents.yaml").write_text(f"- {lines}".replace("AGENT", str(tmp_path / "agent.py")))
    loop = loop_class("mine", str(tmp_path / "agents.yaml"))

    class Placed(loop):  # type: ignore[misc,valid-type]
        async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
            trajectory.container = Here(tmp_path)
            await super().run(trajectory, sampling)

    made = await played(Placed, jump, at=row(), own=LONG / 2, update="pause")
    assert (made.error, made.outcome, made.turns) == (None, "ok", 2)


async def test_a_program_ends_at_its_own_limit(jump: Jump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def runs_on(*_: Any) -> Any:
        asyncio.get_running_loop().call_soon(jump, LONG)
        asked.set()
        return await run_command(["sleep", "60"], tmp_path, tmp_path / "log", {}, _[-1])

    monkeypatch.setattr(programs, "run_command", runs_on)
    (tmp_path / "agents.yaml").write_text("- {name: mine, command: sleep 60, timeout: 5000}")
    trajectory = Trajectory(row(), "1/a/0", 0)
    await attempt(
        lambda: loop_class("mine", str(tmp_path / "agents.yaml"))(stopping()[0]), trajectory, Sampling(64), 10 * LONG
    )
    assert asked.is_set()
    assert "took longer than its timeout of 5000 s" in str(trajectory.error)


async def test_an_environment_that_asks_the_model_is_not_late(jump: Jump, tmp_path: Path) -> None:
    lines = f"{{'{ENVIRONMENTS / 'asking.py'}:Asking': any, rows: 4, timeout: {SHORT}}}"
    (tmp_path / "environments.yaml").write_text(f"slow: {lines}")
    (task, *_) = environment_rows("slow", data=Data(environment_config_path=str(tmp_path / "environments.yaml")))[1:]
    made = await played(OutsideAgent, jump, at=task, own=None, update="pause")
    assert (made.error, made.reward) == (None, 8.0)


async def test_waits_for_us_that_overlap_count_nowhere(jump: Jump) -> None:
    """A queue and another wait; then the seconds of the body count again."""
    slots = asyncio.Semaphore(0)
    async with time_limit(SHORT) as limit:
        waiting = asyncio.create_task(_slot(slots))
        with uncounted():
            await asyncio.sleep(0)
            jump(LONG)
            slots.release()
            await waiting
        jump(SHORT / 2)
        await asyncio.sleep(0.01)
        assert not limit.expired()
        with suppress(asyncio.CancelledError):
            jump(SHORT / 2)
            await asyncio.sleep(60)
        assert limit.expired()


async def _slot(slots: asyncio.Semaphore) -> None:
    async with queued(slots):
        pass


def test_durations_do_not_follow_the_system_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0.0 <= now() - begin < 1000.0
