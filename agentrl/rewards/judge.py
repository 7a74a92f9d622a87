"""A language model as the judge, behind any URL that speaks OpenAI's chat completions.

`reward.custom_reward_function.name=agentrl.rewards.judge:compute_score`, and in `reward_kwargs` at least `url` and
`model`. What the judge cannot be asked, or answers without a score, is an infrastructure error and masks the sample.
"""

import asyncio
import os
import re
from contextlib import AsyncExitStack
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.foreign import read_object
from agentrl.core.json_text import encoded
from agentrl.trajectory.trajectory import Trajectory
from agentrl_sandbox.http_client import HttpClient

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
RETRIED = (429, 500, 502, 503, 504)
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
        "model": model,
        "messages": [{"role": "user", "content": prompt.format(**values)}],
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    key = os.environ.get(api_key_env)
    endpoint = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
    reply = await _ask(endpoint, encoded(body), f"Authorization: Bearer {key}\r\n" if key else "", retries)
    scores = SCORE.findall(reply)
    if not scores or not low <= float(scores[-1]) <= high:
        raise InfraError(f"the judge gave no score from {low:g} to {high:g}: {reply[-200:]!r}")
    return {"score": (float(scores[-1]) - low) / (high - low)}


async def _ask(url: str, body: bytes, headers: str, retries: int) -> str:
    """The text of the first choice. A busy or absent server is asked `retries` times more."""
    trouble = ""
    client = HttpClient(url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        for attempt in range(retries + 1):
            await asyncio.sleep(min(2.0**attempt, 30.0) if attempt else 0)
            try:
                status, reply = await client.request("POST", "", body, headers=headers, timeout=TIMEOUT)
            except OSError as error:
                trouble = str(error) or type(error).__name__
                continue
            if status == 200:
                return _content(reply)
            trouble = f"HTTP {status}: {reply[:200].decode(errors='replace')}"
            if status not in RETRIED:
                break
    raise InfraError(f"the judge at {url} does not answer: {trouble}")


def _content(reply: bytes) -> str:
    try:
        return str((read_object(reply) or {})["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        shown = reply[:200].decode(errors="replace")
        raise InfraError(f"the judge's reply is no chat completion: {shown}") from None
