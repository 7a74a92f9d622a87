"""Trajectories in the Agent Trajectory Interchange Format (ATIF), which Harbor and others read and write."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_object
from agentrl.core.json_text import to_json
from agentrl.tracking.dumps.records import Record
from agentrl.trajectory.message import TOOL_ROLES, Message, text_of

VERSION = "ATIF-v1.7"
ABOUT = ("uid", "data_source", "ground_truth", "reward", "reward_extra", "outcome", "finish", "error")
"""Values of a record that go to `extra`."""
MAX_BYTES = 64 * 2**20
"""Most bytes of a file that is read."""


def write_atif(record: Record, folder: Path) -> None:
    """Write a dumped trajectory to a file of `folder` that has its key as a name."""
    name = re.sub(r"[^\w.-]", "_", record["key"])
    (folder / f"{name}.json").write_text(to_json(to_atif(record)), encoding="utf-8")


def to_atif(record: Record) -> dict[str, Any]:
    """A dumped trajectory as ATIF: token ids and log-probs of each turn; pictures are left out."""
    turns, prompt, steps = list(_turns(record)), len(record["prompt"]), list[dict[str, Any]]()
    for number, message in enumerate(record["messages"]):
        if message["role"] in TOOL_ROLES and steps:
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            call = message.get("tool_call_id")
            known = call in [made["tool_call_id"] for made in steps[-1].get("tool_calls", ())]
            results.append({"content": text_of(message)} | ({"source_call_id": call} if known else {}))
            continue
        steps.append({"step_id": len(steps) + 1, "message": text_of(message), **_step(message)})
        if message["role"] == "assistant":
            sampled = number >= prompt and turns
            steps[-1] |= {"metrics": turns.pop(0), "llm_call_count": 1} if sampled else {"is_copied_context": True}
    about = {name: record.get(name) for name in ABOUT}
    agent = {"name": "agentrl", "version": version("agentrl")}
    return {"schema_version": VERSION, "session_id": record["key"], "agent": agent, "steps": steps, "extra": about}


def read_atif(path: Path) -> Record:
    """An ATIF file as a record without tokens. Raises UserError for another file."""
    try:
        found = read_object(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
        messages = [message for step in (found or {})["steps"] for message in _messages(step)]
        about = dict.fromkeys(ABOUT) | (found or {}).get("extra", {})
        return about | {"key": path.name, "prompt": [], "messages": messages}
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no ATIF trajectory, whose `steps` have `source` and `message`; name one") from error


def _turns(record: Record) -> Iterator[dict[str, Any]]:
    """The metrics of each turn of the model, in order."""
    for sample in record["samples"]:
        ends = list(accumulate(segment["n"] for segment in sample["segments"]))
        for segment, end in zip(sample["segments"], ends, strict=True):
            if segment["source"] == "model":
                begin = end - segment["n"]
                ids, logprobs = (sample["columns"][name][begin:end] for name in ("ids", "logprobs"))
                counts = {"prompt_tokens": begin, "completion_tokens": segment["n"]}
                yield {**counts, "completion_token_ids": ids, "logprobs": logprobs}


def _step(message: Message) -> dict[str, Any]:
    if message["role"] != "assistant":
        return {"source": "system" if message["role"] == "system" else "user"}
    calls = [
        {
            "tool_call_id": str(call.get("id") or number),
            "function_name": call["function"]["name"],
            "arguments": given if isinstance(given := call["function"].get("arguments"), dict) else {"text": given},
        }
        for number, call in enumerate(message.get("tool_calls") or ())
    ]
    found = {"source": "agent", "reasoning_content": message.get("reasoning_content"), "tool_calls": calls}
    return {name: value for name, value in found.items() if value}


def _messages(step: dict[str, Any]) -> Iterator[Message]:
    """The messages of a step. What answers no call is a user's."""
    functions = {
        call["tool_call_id"]: {"name": call["function_name"], "arguments": call["arguments"]}
        for call in step.get("tool_calls") or ()
    }
    calls = [{"id": id, "type": "function", "function": function} for id, function in functions.items()]
    more = {"reasoning_content": step.get("reasoning_content"), "tool_calls": calls}
    role = {"agent": "assistant", "system": "system"}.get(step["source"], "user")
    yield {"role": role, "content": text_of({"content": step["message"]}), **{k: v for k, v in more.items() if v}}
    for result in (step.get("observation") or {}).get("results", ()):
        call = result.get("source_call_id")
        tool = {"role": "tool", "name": functions[call]["name"], "tool_call_id": call} if call in functions else None
        yield {**(tool or {"role": "user"}), "content": text_of(result)}
