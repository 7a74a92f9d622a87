"""A harness of verifiers: a chat with the task's tools, in the worker's own process.

verifiers' own chat harness starts a process for each rollout, in an environment that uv makes; this one needs neither.
"""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness, HarnessConfig
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness", "ChatHarnessConfig"]

FULL = "context length"
"""In the error of a conversation that is too long."""


class ChatHarnessConfig(HarnessConfig):
    """The settings of every harness."""


class ChatHarness(Harness[ChatHarnessConfig]):
    """Turns of the model and calls of tools, until an answer has no call."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> ProgramResult:
        """Run the conversation of one rollout."""
        messages = messages_of(*self.resolve_prompt(data))
        async with AsyncExitStack() as stack:
            specs = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, places, servers = await connect_mcp({"mcpServers": specs}, stack)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            ask = {"model": ctx.model, **({"tools": tools} if tools else {})}
            while reply := await _turn(client, endpoint, secret, {**ask, "messages": messages}):
                messages.append(reply)
                calls = reply.get("tool_calls") or []
                if not calls:
                    break
                messages += [await _result(call, places, servers) for call in calls]
        return ProgramResult(exit_code=0, stdout="", stderr="")


def messages_of(system: str | None, prompt: Any) -> list[dict[str, Any]]:
    """A task's prompt as messages."""
    messages = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *(message_to_wire(message) for message in prompt or [])]


async def _turn(client: httpx.AsyncClient, endpoint: str, secret: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The model's message; None where the conversation is too long for one."""
    headers = {"Authorization": f"Bearer {secret}"}
    answer = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
    if answer.status_code == 400 and FULL in answer.text:
        return None
    if answer.is_error:
        raise RuntimeError(f"the model's server said {answer.status_code}: {answer.text[:300]}")
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if value is not None}


async def _result(call: dict[str, Any], places: dict[str, Any], servers: dict[str, Any]) -> dict[str, Any]:
    """The message with a call's result, or with the model's mistake."""
    name, written = call["function"]["name"], call["function"].get("arguments") or "{}"
    try:
        arguments = json.loads(written)
    except json.JSONDecodeError as error:
        arguments, content = None, f"error: the arguments are no JSON: {error}"
    else:
        content = f"error: unknown tool {name!r}" if name not in places else "error: the arguments are no JSON object"
    if name in places and isinstance(arguments, dict):
        content = await call_mcp(servers, places, name, arguments)
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
