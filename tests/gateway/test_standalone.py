"""`agentrl gateway`, on a scripted engine: every key is a conversation, and all of them are kept."""

import asyncio
from pathlib import Path

import httpx
import openai

from agentrl.engines.engine import Sampling
from agentrl.gateway.standalone import OpenGateway, serve
from agentrl.tracking import load_trajectories
from agentrl.tracking.dumps.index import read_index
from agentrl.tracking.dumps.jsonl import Appended
from tests.rollout.scripted import environment, says
from tests.waiting import until


async def test_conversations_are_kept_by_key(tmp_path: Path) -> None:
    env, engine = environment(says("The answer is 5 .", "Yes"), model_length=2048)
    kept = Appended(tmp_path / "seen.jsonl", env.chat.decode)
    gateway = OpenGateway(env, Sampling(64, seed=1), tmp_path / "sessions", ended=kept.add)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(gateway, url.set_result, stop))
    base = f"{await url}/v1"
    for key, turns in (("a", 2), ("b", 1)):
        client = openai.AsyncOpenAI(base_url=base, api_key=key)
        said = [{"role": "user", "content": "What is 2 + 3 ?"}]
        for _ in range(turns):
            answer = await client.chat.completions.create(model="m", messages=said)
            said += [answer.choices[0].message, {"role": "user", "content": "Sure?"}]
    async with httpx.AsyncClient(timeout=None) as keyless:
        refusal = await keyless.get(f"{base}/models")
        assert refusal.status_code == 401
        assert refusal.json()["error"]["message"].startswith("the request names no rollout: use the base URL")
    stop.set()
    await serving
    records = load_trajectories(tmp_path / "seen.jsonl")
    assert [(record["key"], record["turns"]) for record in records] == [("gateway/a", 2), ("gateway/b", 1)]
    assert [key.rpartition("/")[0] for key in engine.released] == ["gateway/a", "gateway/b"]


async def test_a_conversation_is_written_when_it_has_ended(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 5 .", "Yes"), model_length=2048)
    kept = Appended(tmp_path / "seen.jsonl", env.chat.decode)
    (tmp_path / "seen.jsonl").write_text("of an earlier time\n")
    gateway = OpenGateway(env, Sampling(64, seed=1), tmp_path / "sessions", timeout=0.2, ended=kept.add)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(gateway, url.set_result, stop))
    for number, key in enumerate(("a", "b"), start=1):
        client = openai.AsyncOpenAI(base_url=f"{await url}/v1", api_key=key)
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "What is 2 + 3 ?"}])
        assert await until(lambda number=number: kept.count == number, 30)  # type: ignore[misc]
        records = load_trajectories(tmp_path / "seen.jsonl")  # while it serves
        assert [record["key"] for record in records] == ["gateway/a", "gateway/b"][:number]
        assert len(read_index(tmp_path / "seen.jsonl")) == number
        assert not gateway.sessions
    stop.set()
    await serving
    assert kept.count == 2
