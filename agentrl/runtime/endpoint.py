"""A model behind an endpoint of OpenAI's protocol (`rollout.name=openai`): it answers, and nothing is loaded here.

Loops, agents and limits work on tokens. Here a token is a byte, in a chat template that can be read: `Endpoint`, an
engine, reads the messages and the tools in the tokens of a request, and writes the answer as the template does.

Invariant: the endpoint gets the messages and the tools that the template got, and its own answers as it gave them.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from agentrl.chat.chat import READY_MADE_TEMPLATE
from agentrl.config.schema import Config
from agentrl.config.schema.marks import FILTERS
from agentrl.core.errors import InfraError, UserError
from agentrl.core.json_text import to_json
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.http.chat_model import ChatModel
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.runtime import Runtime
from agentrl.tasks.models.store import read_template
from agentrl.tasks.models.tiny import END, START, train_tokenizer
from agentrl.tracking.start_times import StartTimes
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.message import Message

LONGEST = 2**24  # bytes of a conversation: the endpoint has a limit of its own
KEY, RETRIES, TIMEOUT = "OPENAI_API_KEY", 6, 3600.0
TOOLS = re.compile(r"(?:(.*)\n\n)?You can call these tools\..*?<tools>\n(.*)\n</tools>\n.*", re.DOTALL)
"""A first message with tools, as the template writes it: a system prompt, and a schema in each line."""


class EndpointRuntime(Runtime):
    """Samples, and has no learner."""

    def __init__(self, config: Config, objects: UserObjects) -> None:
        """Raises UserError."""
        super().__init__(StartTimes())
        self.tokenizer = train_tokenizer([], 256, read_template(share() / READY_MADE_TEMPLATE))
        data = replace(config.data, max_prompt_length=LONGEST, max_response_length=LONGEST)
        rollout, model = replace(config.rollout, max_model_len=LONGEST), replace(config.model, path=None)
        engine = Endpoint(str(config.rollout.base_url), str(config.model.path), self.tokenizer)
        of_bytes = replace(config, data=data, rollout=rollout, model=model)
        self.rollouts = self._open_rollouts(of_bytes, engine, objects=objects)
        self.rollouts.config = config  # data.max_response_length: tokens of an answer, as the endpoint counts them

    def _free_memory(self) -> None: ...


class Endpoint:
    """An engine whose tokens are bytes; it has no weights."""

    def __init__(self, url: str, model: str, tokenizer: Any) -> None:
        """`model`: its name there. Raises UserError for an address that is none."""
        self.model = ChatModel(url, model, KEY, RETRIES)
        self.close = self.model.http.close
        self.tokenizer = deepcopy(tokenizer)  # to encode control tokens as letters is a setting of the object
        self._marks = tokenizer.convert_tokens_to_ids([START, END])
        self._said: defaultdict[str, dict[str, Message]] = defaultdict(dict)
        """Answers by trajectory and by their texts."""

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """The model's answer to the conversation. Raises InfraError, and UserError for log-probs."""
        if sampling.candidates:
            raise UserError("an endpoint tells no log-probs: leave them out, and rollout.use_fire_sampling too")
        messages, tools, begun = read_prompt(self._turns(list(token_ids)), self._said[key])
        named = [tool for tool in tools if to_json(tool["function"]["name"]) in begun]
        wanted = {"tools": named or tools} | ({"tool_choice": "required"} if begun else {}) if tools else {}
        choice = await self.model.complete({"messages": messages, **wanted, **settings(sampling)}, TIMEOUT)
        text, cut = written(choice["message"]), choice.get("finish_reason") == "length"
        self._said[key][text] = {name: value for name, value in choice["message"].items() if value is not None}
        ids = self.tokenizer.encode(text.removeprefix(begun), add_special_tokens=False, split_special_tokens=True)
        ids += [] if cut else [self._marks[1]]
        return Generation(ids, [0.0] * len(ids), "length" if cut else "stop", 0)

    def release(self, key: str) -> None:
        self._said.pop(key, None)

    def open(self, key: str) -> None: ...

    async def _nothing(self, *_: Any) -> Any:
        return {}

    start = abort = pause = resume = update_weights = sleep = wake = health = _nothing

    def _turns(self, ids: list[int]) -> list[list[str]]:
        """Role and text of each message; the last one is the answer as far as it is begun."""
        start, end = self._marks
        starts = [place for place, token in enumerate(ids) if token == start]
        pieces = (ids[begin + 1 : stop] for begin, stop in pairwise([*starts, len(ids)]))
        whole = [piece[: piece.index(end)] if end in piece else piece for piece in pieces]
        return [self.tokenizer.decode(piece).split("\n", 1) for piece in whole]


def settings(sampling: Sampling) -> dict[str, Any]:
    """Settings of a request; those beyond OpenAI's own only where they change something."""
    usual = {"temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens, "seed": sampling.seed}
    further = {name: getattr(sampling, name) for name in FILTERS}
    return usual | {name: value for name, value in further.items() if value not in (getattr(Sampling, name), -1)}


def read_prompt(turns: list[list[str]], said: dict[str, Message]) -> tuple[list[Message], list[dict[str, Any]], str]:
    """The messages and the tools of a prompt, and the beginning of the answer. `said`: answers by their texts."""
    messages, tools, unanswered = list[Message](), list[dict[str, Any]](), deque[str]()
    if turns[0][0] == "system" and (shown := TOOLS.fullmatch(turns[0][1])):
        tools = [json.loads(line) for line in shown[2].splitlines()]
        turns[:1] = [["system", shown[1]]] if shown[1] else []
    for role, text in turns[:-1]:
        message: Message = {"role": role, "content": text}
        if role == "assistant":
            message = said.get(text, message)
            unanswered = deque(call.get("id", "") for call in message.get("tool_calls", ()))
        elif role == "tool":
            message |= {"tool_call_id": unanswered.popleft()} if unanswered else {"role": "user"}
        messages.append(message)
    return messages, tools, turns[-1][1]


def written(message: Message) -> str:
    """A message of the endpoint as the template writes it. Raises InfraError."""
    shown = [str(message.get("content") or "")]
    try:
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], call["function"]["arguments"] or "{}"
            shown.append(f'<tool_call>{{"name": {to_json(str(name))}, "arguments": {given}}}</tool_call>')
    except (KeyError, TypeError) as error:
        raise InfraError(f"the endpoint's answer has a call that is none: {error!r}") from None
    return "\n".join(filter(None, shown))
