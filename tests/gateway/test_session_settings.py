"""Models by name, hooks, matchers and rewards of an entry, on a scripted engine."""

from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.core.errors import UserError
from agentrl.gateway.program import read_program
from agentrl.gateway.settings import SessionSettings, read_settings
from tests.gateway.serving import KEY, Served, serving
from tests.rollout.scripted import says

pytestmark = pytest.mark.integration
QUESTION = {"role": "user", "content": "What is 2 + 3 ?"}
MINE = """
from dataclasses import replace

from agentrl.http.refusals import Refused


def wants(body):
    return len(body["messages"]) > 1


def on_request(body, trajectory):
    if "secret" in str(body["messages"]):
        raise Refused("hook: no secrets")
    said = [dict(message, content=message["content"].replace("What is", "Sure,")) for message in body["messages"]]
    return body | {"messages": said}


async def on_answer(answer, trajectory):
    return replace(answer, text=answer.text.upper())


def matcher(messages, histories):
    return (len(histories) - 1, len(messages) - 1) if histories else None
"""


def settings(folder: Path, **entry: Any) -> SessionSettings:
    (folder / "mine.py").write_text(MINE)
    return read_settings(entry, "agents.yaml: mine", folder)


async def ask(served: Served, model: str, *said: Any) -> Any:
    client = openai.AsyncOpenAI(**served.openai, max_retries=0)
    return await client.chat.completions.create(model=model, messages=[QUESTION, *said])


async def test_names_are_trained_frozen_or_aliases(tmp_path: Path) -> None:
    async with serving(says("Yes")) as judge:
        url = {"base_url": f"{judge.url}/v1", "model": "big"}
        models = {"judge": url, "title": {"train": False}, "cold": {"temperature": 0.25}}
        async with serving(says("The answer is 5 .", "Sure?", "The answer is 5 .", "Yes")) as served:
            served.session.settings = settings(tmp_path, models=models, rewards=True)
            first = await ask(served, "policy")
            said = [first.choices[0].message, {"role": "user", "content": "Sure?"}]
            assert (await ask(served, "title")).choices[0].message.content == "Sure?"
            assert (await ask(served, "judge")).model == "big"
            await ask(served, "cold", *said)
            assert [round(sampling.temperature, 2) for sampling in served.engine.asked] == [1.0, 1.0, 0.25]
            await ask(served, "other", *said)  # goes on in the policy's ledger
            posted = {"reward": 0.5, "answer": first.id}
            async with httpx.AsyncClient() as client:
                assert (await client.post(f"{served.url}/rewards", json=posted)).status_code == 200
                assert (await client.post(f"{judge.url}/rewards", json=posted)).status_code == 400
            served.session.end("done")
    trajectory = served.trajectory
    about = trajectory.extra["gateway"]
    assert (about["model"], len(trajectory.ledgers)) == (["policy", "cold"], 2)
    title, judged = about["others"]
    assert (title["model"], title["messages"][-1]["content"]) == ("title", "Sure?")
    assert (judged["model"], judged["messages"], judged["answer"]["model"]) == ("judge", [QUESTION], "big")
    assert [len(messages) for messages in about["messages"]] == [4, 4]
    assert [(reward.turn, reward.value) for reward in trajectory.turn_rewards] == [(0, 0.5)]
    assert judge.session.requests == 1


async def test_answers_of_other_servers_are_passed_on_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.gateway.settings.MAX_BODY_BYTES", 500)
    async with serving(says("Yes", "No", "No" * 1000)) as judge, serving(says()) as served:
        models = {"judge": {"base_url": f"{judge.url}/v1beta", "model": "big"}}
        served.session.settings = settings(tmp_path, models=models)
        asked = {"contents": [{"parts": [{"text": "What is 2 + 3 ?"}]}]}
        async with httpx.AsyncClient(base_url=served.url, timeout=None) as http:
            answer = await http.post("/v1beta/models/judge:generateContent", json=asked)
            assert (answer.json()["modelVersion"], answer.json()["candidates"][0]["finishReason"]) == ("big", "STOP")
            answer = await http.post("/v1beta/models/judge:streamGenerateContent", json=asked)
            assert answer.text.startswith("data: {")
            answer = await http.post("/v1beta/models/judge:generateContent", json=asked)
            assert (answer.status_code, "an answer of more than 500 bytes" in answer.text) == (503, True)
    assert not served.trajectory.ledgers


async def test_a_function_says_what_is_trained_on(tmp_path: Path) -> None:
    async with serving(says("The answer is 5 .", "Yes")) as served:
        served.session.settings = settings(tmp_path, models={"*": {"train": "mine.wants"}})
        await ask(served, "m")
        assert served.trajectory.ledgers == []
        await ask(served, "m", {"role": "assistant", "content": "5"}, {"role": "user", "content": "Sure?"})
    assert len(served.trajectory.ledgers) == 1


async def test_hooks_change_and_stop(tmp_path: Path) -> None:
    async with serving(says("The answer is 5 .", "Yes")) as served:
        served.session.settings = settings(tmp_path, on_request="mine.on_request", on_answer="mine.on_answer")
        answer = await ask(served, "m")
        assert answer.choices[0].message.content == "THE ANSWER IS 5 ."
        await ask(served, "m", answer.choices[0].message, {"role": "user", "content": "x"})
        with pytest.raises(openai.BadRequestError, match="hook: no secrets"):
            await ask(served, "m", {"role": "user", "content": "secret"})
    (ledger,) = served.trajectory.ledgers  # the answer that was sent is the one that its client repeats
    shown = served.session.chat.decode(ledger.ids)
    assert "The answer is 5 ." in shown
    assert "What is 2" not in shown


async def test_a_matcher_finds_a_rewritten_history(tmp_path: Path) -> None:
    rewritten = {"role": "user", "content": "Earlier I asked for a sum and got it."}
    for matcher, ledgers in (({}, 2), ({"matcher": "mine.matcher"}, 1)):
        async with serving(says("The answer is 5 .", "Yes")) as served:
            served.session.settings = settings(tmp_path, **matcher)
            served.session.tree.matcher = served.session.settings.matcher
            await ask(served, "m")
            client = anthropic.AsyncAnthropic(base_url=served.url, api_key=KEY)
            said: Any = [rewritten, {"role": "user", "content": "Sure?"}]
            await client.messages.create(model="m", max_tokens=64, messages=said)
        assert len(served.trajectory.ledgers) == ledgers


URL = "http://localhost:1/v1"


def test_a_key_without_a_value_is_as_one_left_out(tmp_path: Path) -> None:
    models = {"a": {"temperature": None, "model": None}, "b": {"base_url": URL, "train": None, "top_p": None}}
    roles = settings(tmp_path, models=models).models
    assert [(role.sampling, role.train) for role in roles.values()] == [({}, True), ({}, True)]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"sampling": "hot"}, "write run"),
        ({"models": ["a"]}, "a mapping of names after models"),
        ({"models": {"a": {"trane": True}}}, "write a mapping with some of train"),
        ({"models": {"a": {"temperature": "hot"}}}, "temperature is 'hot': write a number"),
        ({"models": {"a": {"base_url": 5}}}, "models: a: base_url is 5: write a text"),
        ({"models": {"a": {"base_url": URL, "model": 5}}}, "models: a: model is 5: write a text"),
        ({"models": {"a": {"base_url": URL, "train": True}}}, "models: a: leave out train: no effect with base_url"),
        ({"models": {"a": {"base_url": URL, "top_p": 1}}}, "models: a: leave out top_p: no effect with base_url"),
        ({"models": {"a": {"model": "big"}}}, "models: a: leave out model: no effect without base_url"),
        ({"models": {"a": {"train": "mine.nothing"}}}, "has no 'nothing'"),
        ({"on_answer": "nowhere.function"}, "nowhere"),
        ({"on_answer": None}, "on_answer: None names no function: write file.function"),
        ({"host": 5}, "host is 5: write a text"),
        ({"name": "mine"}, "sessions: name it online, without command"),
        ({"command": "true"}, "sessions: name it online, without command"),
    ],
)
def test_a_bad_entry_is_one_line(tmp_path: Path, entry: dict[str, Any], why: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(UserError, match=why):
        read_program({"name": "online", "sessions": True, **entry}, tmp_path / "agents.yaml")
