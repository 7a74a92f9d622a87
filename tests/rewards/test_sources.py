"""Ready-made scores: by data source, in mathematics, for questions, and by a judge."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from agentrl.core.errors import InfraError, UserError
from agentrl.rewards import judge, maths, questions, scorers
from agentrl.rewards.function import load_reward_function
from agentrl.rewards.ready_made import function_for, ready_made_functions
from agentrl.rewards.sources import compute_score
from tests.rewards.test_scorer import trajectory

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("function", ready_made_functions())
def test_every_function_loads(function: str) -> None:
    assert load_reward_function(None, function, {}) is not None


@pytest.mark.parametrize(
    ("source", "solution", "truth", "score"),
    [
        ("openai/gsm8k", "so 40 + 2\n#### 42", "42", 1.0),
        ("openai/gsm8k", "it is 42", "42", 0.0),
        ("lighteval/MATH", r"thus \boxed{\frac{1}{2}}", r"\dfrac12", 1.0),
        ("numina_olympiads", r"\boxed{x+1}", "x+2", 0.0),
        ("math_dapo", "So.\nAnswer: 34", "34", 1.0),
        ("aime2024", "So.\nAnswer: 33", "34", -1.0),
        ("hiyouga/geometry3k", r"<think>hm</think> \boxed{7}", "7", 1.0),
        ("hiyouga/geometry3k", r"\boxed{7}", "7", 0.9),
        ("searchR1_nq", "<answer>The Eiffel Tower!</answer>", {"target": ["eiffel tower", "x"]}, 1.0),
    ],
)
async def test_rows_choose_their_scorer(source: str, solution: str, truth: Any, score: float) -> None:
    result = await compute_score(source, solution, truth, {}, sandbox=None)
    assert (result["score"] if isinstance(result, dict) else result) == pytest.approx(score)


async def test_an_unknown_source_is_told() -> None:
    assert function_for("mine") is None
    with pytest.raises(UserError, match=r"'mine' has no reward function .*reward\.custom_reward_function\.path"):
        await compute_score("mine", "", "", sandbox=None)


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{(1, 2)}", "(1,2)", True),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
        (r"\boxed{2\sqrt{3}}", r"2\sqrt{2}", False),
        ("no answer at all", "3", False),
        (r"\boxed{\frac{}{", "3", False),
    ],
)
def test_mathematics_is_compared_as_such(answer: str, truth: str, right: bool) -> None:
    assert maths.equal("", answer, truth) == float(right)


def test_answers_are_taken_from_where_they_belong() -> None:
    assert scorers.gsm8k("", "#### 1,234 dollars", "1234") == 1.0
    assert scorers.gsm8k("", "it is 7", "7", method="flexible") == 1.0
    assert scorers.gsm8k("", "#### none", "0") == 0.0
    assert maths.dapo("", "Answer: 5" + "." * 400, "5") == {"score": -1.0, "acc": 0.0}


def test_f1_counts_shared_words() -> None:
    # "blue whale" against "the great blue whale": two of two and two of three words
    result = questions.f1("", "<answer>x</answer> <answer>A blue whale</answer>", ["the great blue whale", "shark"])
    assert result == {"score": pytest.approx(0.8), "exact_match": 0.0}
    assert questions.f1("", "blue whale", ["blue whale"])["score"] == 0.0  # no tag, no answer
    assert questions.exact_match("", "<answer>42</answer>", 42) == 1.0


class Server:
    """A chat completions server that answers from a list; its address is `url`."""

    def __init__(self, *replies: tuple[int, str]) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[dict, str | None]] = []

    async def __aenter__(self) -> "Server":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json(), request.headers.get("Authorization")))
        status, text = self.replies.pop(0)
        return web.json_response({"choices": [{"message": {"content": text}}]}, status=status)


async def judged(server: Server, **kwargs: Any) -> dict[str, float]:
    return await judge.compute_score(
        "src", "it is 41", "42", trajectory=trajectory(), url=server.url, model="wise", **kwargs
    )


async def test_the_judge_reads_question_truth_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with Server((200, "Nearly.\n**Score:** 7.5")) as server:
        assert await judged(server, low=0, high=10) == {"score": 0.75}
    body, key = server.asked[0]
    assert key == "Bearer secret"
    assert body["model"] == "wise"
    assert all(text in body["messages"][0]["content"] for text in ("q", "42", "it is 41", "to 10 (right)"))


async def test_a_busy_judge_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: real(0))
    async with Server((503, ""), (429, ""), (200, "Score: 1")) as server:
        assert await judged(server) == {"score": 1.0}
    async with Server((401, "no")) as server:
        with pytest.raises(InfraError, match=f"{server.url}.* answered 401"):
            await judged(server)
    with pytest.raises(InfraError, match=server.url):
        await judged(server, retries=0)  # nobody listens any more


@pytest.mark.parametrize("reply", ["I cannot say.", "Score: 3", "Score: -1"])
async def test_a_judge_without_a_score_masks_the_sample(reply: str) -> None:
    async with Server((200, reply)) as server:
        with pytest.raises(InfraError, match="no score from 0 to 1"):
            await judged(server)
