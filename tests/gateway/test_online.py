"""Sessions that clients open, on a scripted engine: rewards, restarts, groups, limits."""

import asyncio
import gc
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling
from agentrl.gateway.journal import lines
from agentrl.gateway.online import OnlineAgent, OnlineGateway, session_rows
from agentrl.gateway.program import AgentProgram
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import environment, row, says

pytestmark = pytest.mark.integration
QUESTION = {"role": "user", "content": "What is 2 + 3 ?"}


@asynccontextmanager
async def online(folder: Path, *turns: str, n: int = 1, timeout: float = 60.0) -> AsyncIterator[OnlineGateway]:
    config = Config()
    config.trainer.default_local_dir, config.rollout.n = str(folder), n
    env, _ = environment(says(*turns), model_length=2048)
    env = type(env)(**{**vars(env), "settings": config})
    row = session_rows("127.0.0.1:0", data=config.data)[0]
    gateway = OnlineGateway(env, Sampling(64, seed=1), row, AgentProgram("online", timeout=timeout))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()


async def ask(gateway: OnlineGateway, key: str, said: list[Any]) -> Any:
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
    answer = await client.chat.completions.create(model="m", messages=said)
    said += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Sure?"}]
    return answer


async def post(gateway: OnlineGateway, key: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{gateway.url}/{path}", json=body, headers={"Authorization": f"Bearer {key}"})


async def taken(gateway: OnlineGateway, row: str, sample: int = 0) -> Trajectory:
    trajectory = Trajectory(session_rows("", data=Config().data)[0], f"{row}/{sample}", sample)
    await asyncio.wait_for(gateway.take(trajectory), 10)
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


async def test_a_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    said: list[Any] = [QUESTION]
    async with online(tmp_path, "The answer is 5 .") as gateway:
        first = await ask(gateway, "ann", said)
        ledger = gateway.sessions["ann"].trajectory.ledgers[0].ids.copy()
        assert (await post(gateway, "ann", "rewards", answer=first.id, reward=0.5)).status_code == 200
    with (tmp_path / "sessions/open/ann/ann").open("a") as journal:
        journal.write('{"turn": {"after": "')  # killed while it wrote
    async with online(tmp_path, "Yes") as gateway:
        second = await ask(gateway, "ann", said)
        assert second.id != first.id
        (line,) = [line for line in lines(gateway.folder / "open/ann/ann") if line.get("turn", {}).get("number") == 1]
        assert line["turn"]["after"] == first.id.rpartition("-")[2]  # the cut line before it spoils nothing
        assert gateway.sessions["ann"].trajectory.ledgers[0].ids[: len(ledger)] == ledger
        assert (await post(gateway, "ann", "end", reward={"helpful": 1, "short": 0.25})).status_code == 200
        assert gateway.metrics() == {"online/open": 0, "online/ready": 1, "online/dropped": 0}
        late = await post(gateway, "ann", "rewards", reward=1)
        assert "is not open" in late.json()["error"]["message"]
        trajectory = await taken(gateway, "1/sessions:0")
    assert (len(trajectory.ledgers), trajectory.turns, trajectory.reward) == (1, 2, 1.25)
    assert [(turn.turn, turn.value) for turn in trajectory.turn_rewards] == [(0, 0.5)]
    assert trajectory.reward_extra == {"helpful": 1.0, "short": 0.25}
    async with online(tmp_path) as gateway:  # the step was lost: its row has the same session
        again = await taken(gateway, "1/sessions:0")
        assert again.ledgers == trajectory.ledgers
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.2):
                await taken(gateway, "2/sessions:1")


async def test_groups_are_taken_whole(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .", n=2) as gateway:
        with pytest.raises(openai.AuthenticationError, match="write GROUP:NAME"):
            await ask(gateway, "alone", [QUESTION])
        for member, reward in (("sum:a", 1.0), ("sum:b", 0.0)):
            await ask(gateway, member, [QUESTION])
            await post(gateway, member, "end")
            await post(gateway, member, "rewards", reward=reward)  # late
        pair = [await taken(gateway, "1/sessions:0", sample) for sample in range(2)]
    assert [trajectory.reward for trajectory in pair] == [1.0, 0.0]


async def test_what_gets_no_reward_is_dropped_and_counted(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        await ask(gateway, "none", [QUESTION])
        await ask(gateway, "liked", [QUESTION])
        await post(gateway, "liked", "rewards", reward=True)  # it never ends
        gateway.end_idle(0.0)
        assert gateway.metrics()["online/dropped"] == 1
        trajectory = await taken(gateway, "1/sessions:0")
        assert (trajectory.reward, trajectory.extra["session"]) == (1.0, "liked")
        assert os.listdir(tmp_path / "sessions/dropped")[0].endswith("-none")


async def test_a_group_takes_no_further_session(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .", n=2) as gateway:
        await ask(gateway, "sum:a", [QUESTION])
        both = await asyncio.gather(*(ask(gateway, f"sum:{name}", [QUESTION]) for name in "bc"), return_exceptions=True)
        assert [isinstance(each, openai.AuthenticationError) for each in both] == [False, True]
        assert "has its 2 sessions" in str(both[1])
        for name in "ab":
            await post(gateway, f"sum:{name}", "end", reward=1)
        await ask(gateway, "sum:c", [QUESTION])  # the next group with this name
        pair = [await taken(gateway, "1/sessions:0", sample) for sample in range(2)]
    assert [trajectory.extra["session"] for trajectory in pair] == ["sum:a", "sum:b"]


async def test_rewards_are_bounded_by_turns_and_a_scored_session_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Path]()
    monkeypatch.setattr(OnlineGateway, "changed", lambda self, group: read.append(group))
    async with online(tmp_path, "The answer is 5 .") as gateway:
        await ask(gateway, "long", [QUESTION])
        session = gateway.sessions["long"]
        for number in range(199):
            session.reward({"reward": number / 199, "answer": 0})
        assert (await post(gateway, "long", "rewards", reward=0.5)).status_code == 200
        assert "has had 200 rewards" in (await post(gateway, "long", "rewards", reward=0.5)).text  # 100, and 100 a turn
        assert read == []  # an open session completes no group
        assert (await post(gateway, "long", "end")).status_code == 200
        session.rewards = 1
        assert (await post(gateway, "long", "rewards", reward=0.25)).status_code == 200
        assert len(read) == 1  # it was complete before
        assert [turn.value for turn in session.trajectory.turn_rewards] == [198 / 199]


async def test_only_rows_of_sessions_have_their_loop(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 5 ."))
    env = type(env)(**{**vars(env), "settings": Config()})
    with pytest.raises(UserError, match="agent online is for training rows of sessions:PORT alone"):
        await OnlineAgent(env).run(Trajectory(row(), "1/r/0", 0), Sampling(64))


async def test_a_later_session_with_a_key_draws_from_other_seeds(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        answers = []
        for _ in range(2):
            answers.append(await ask(gateway, "ann", [QUESTION]))
            await post(gateway, "ann", "end", reward=1)
        assert answers[0].id != answers[1].id


async def test_the_time_without_a_server_does_not_count(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        await ask(gateway, "ann", [QUESTION])
    now, journal = time.time(), tmp_path / "sessions/open/ann/ann"
    os.utime(journal, (now - 1000, now - 1000))
    os.utime(tmp_path / "sessions", (now - 960, now - 960))  # it served for 40 s after the last request
    async with online(tmp_path) as gateway:
        gateway.end_idle(60.0)
        assert gateway.metrics()["online/open"] == 1
        gateway.end_idle(30.0)
        assert gateway.metrics()["online/dropped"] == 1


async def test_what_was_rewarded_before_a_kill_is_trained_on(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        await ask(gateway, "ann", [QUESTION])
        await post(gateway, "ann", "rewards", reward={"helpful": 1})
        await post(gateway, "ann", "rewards", reward={"short": 0.5})  # in its place
    with (tmp_path / "sessions/open/ann/ann").open("a") as journal:
        journal.write('{"turn": {"after": "')  # killed while it wrote; its client does not come back
    async with online(tmp_path) as gateway:
        gateway.end_idle(0.0)
        trajectory = await taken(gateway, "1/sessions:0")
    assert (trajectory.reward, trajectory.reward_extra) == (0.5, {"short": 0.5})


async def test_large_bodies_stay_in_no_memory(tmp_path: Path) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        large = "x" * 2**22
        tracemalloc.start()
        for key, said, more in (("a", {"role": "user", "content": large}, {}), ("b", QUESTION, {"metadata": large})):
            answer = await post(gateway, key, "v1/chat/completions", model="m", messages=[said], **more)
            assert answer.status_code == (400 if key == "a" else 200)
        del answer
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 2**22


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "not a finite number"),
        ({"reward": "good"}, "not a finite number"),
        ({"reward": {}}, "a number, or up to 64 numbers"),
        ({"reward": {str(i): 1 for i in range(65)}}, "a number, or up to 64 numbers"),
        ({"reward": 1, "answer": "chatcmpl-000000000"}, "give an id, or a number from 0"),
        ({"reward": 1, "answer": 1}, "give an id, or a number from 0"),
        ({"reward": 1, "answer": -0.0}, "give an id, or a number from 0"),
        ({"reward": 1, "answer": "-0"}, "give an id, or a number from 0"),
    ],
)
async def test_bad_rewards_are_refused(tmp_path: Path, body: dict[str, Any], why: str) -> None:
    async with online(tmp_path, "The answer is 5 .") as gateway:
        await ask(gateway, "ann", [QUESTION])
        refused = await post(gateway, "ann", "rewards", **body)
        assert refused.status_code == 400
        assert why in refused.json()["error"]["message"]
        assert (await post(gateway, "../x", "end")).status_code == 401
