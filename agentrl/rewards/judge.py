"""A language model as the judge, behind any URL that speaks OpenAI's chat completions.

`reward.custom_reward_function.name=agentrl.rewards.judge:compute_score`, and in `reward_kwargs` at least `url` and
`model`. What the judge cannot be asked, or answers without a score, is an infrastructure error and masks the sample.
"""

import re
from contextlib import AsyncExitStack
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.http.chat_model import ChatModel
from agentrl.trajectory.trajectory import Trajectory

PROMPT = """Judge the answer to a question.

Question:
{question}

Reference answer:
{ground_truth}

Answer to be judged:
{solution}

How right is the answer, from {low:g} (wrong) to {high:g} (right)? Reason briefly, then end with "Score: <number>".
"""
SCORE = re.compile(r"score\W*?(-?\d+(?:\.\d+)?)", re.IGNORECASE)
TIMEOUT = 300.0
"""Seconds for an answer."""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    trajectory: Trajectory,
    url: str,
    model: str,
    prompt: str = PROMPT,
    low: float = 0.0,
    high: float = 1.0,
    temperature: float = 0.0,
    max_tokens: int = 1024,
    api_key_env: str = "OPENAI_API_KEY",
    retries: int = 3,
) -> dict[str, float]:
    """The judge's score, brought from `low`..`high` to 0..1.

    `url` ends in /v1 or in /chat/completions. `prompt` may use {question}, {ground_truth}, {solution}, {low}, {high}.
    The environment variable `api_key_env` holds the key, if one is needed. Raises InfraError.
    """
    question = next((m["content"] for m in reversed(trajectory.row.prompt) if m["role"] == "user"), "")
    values = {"question": question, "ground_truth": ground_truth, "solution": solution_str, "low": low, "high": high}
    body = {
        "messages": [{"role": "user", "content": prompt.format(**values)}],
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    judge = ChatModel(url, model, api_key_env, retries)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(judge.http.close)
        reply = str((await judge.complete(body, TIMEOUT))["message"].get("content") or "")
    scores = SCORE.findall(reply)
    if not scores or not low <= float(scores[-1]) <= high:
        raise InfraError(f"the judge gave no score from {low:g} to {high:g}: {reply[-200:]!r}")
    return {"score": (float(scores[-1]) - low) / (high - low)}
