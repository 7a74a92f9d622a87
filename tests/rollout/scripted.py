"""An engine that says what a test tells it to, so that loops and scheduler are tested without a model."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.chat import Chat
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.interactions import InteractionSet, load_interactions
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext
from agentrl.tasks.models.tiny import train_tokenizer
from agentrl.tools import ToolSet, load_tools
from agentrl.trajectory.row import Row

END = "<|im_end|>"
Script = Callable[[str, int], str | Exception]
"""(key, turn) -> text of the turn, or an error to raise. Without <|im_end|> the turn was cut by length."""


@cache
def tokenizer() -> Any:
    texts = ["What is 2 + 3 ? The answer is 5 . You are wrong, try again.", '{"name": "add", "arguments": {"a": 1}}']
    template = (share() / "configs/templates/chatml_tools_compact.jinja").read_text()
    return train_tokenizer(texts, 600, template)


def make_chat(**options: Any) -> Chat:
    return Chat(tokenizer(), **options)


class ScriptedEngine:
    """Plays a script; keeps what it was asked."""

    def __init__(self, chat: Chat, script: Script, *, version: int = 3) -> None:
        self.chat, self.script, self.version = chat, script, version
        self.turns: dict[str, int] = defaultdict(int)
        self.prompts: dict[str, list[list[int]]] = defaultdict(list)
        self.seeds: list[int | None] = []
        self.asked: list[Sampling] = []
        self.opened: list[str] = []
        self.released: list[str] = []
        self.aborts = 0

    def open(self, key: str) -> None:
        self.opened.append(key)

    def release(self, key: str) -> None:
        self.released.append(key)

    async def abort(self) -> None:
        self.aborts += 1

    async def health(self) -> dict[str, float]:
        return {}

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        await asyncio.sleep(0)
        self.prompts[key].append(token_ids)
        self.seeds.append(sampling.seed)
        self.asked.append(sampling)
        said = self.script(key, self.turns[key])
        self.turns[key] += 1
        if isinstance(said, Exception):
            raise said
        ids = self.chat.tokenizer.encode(said, add_special_tokens=False)
        reason = "stop" if said.endswith(END) else "length"
        ids = ids[: sampling.max_new_tokens]
        return Generation(ids, [-0.25] * len(ids), reason, self.version)  # type: ignore[arg-type]


def says(*turns: str | Exception) -> Script:
    """The same turns for every trajectory; strings end with <|im_end|> unless they end with "..."."""
    texts = [t if isinstance(t, Exception) else t.removesuffix("...") if t.endswith("...") else t + END for t in turns]
    return lambda key, turn: texts[turn]


def calls(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def environment(
    script: Script,
    *,
    tools: ToolSet | None = None,
    interactions: InteractionSet | None = None,
    inference_template: bool = False,
    chat: Chat | None = None,
    **limits: Any,
) -> tuple[RolloutContext, ScriptedEngine]:
    chat = chat or make_chat()
    engine = ScriptedEngine(chat, script)
    bounds = {"prompt_length": 512, "response_length": 512, "model_length": 1024} | limits
    env = RolloutContext(
        engine,  # type: ignore[arg-type]
        chat,
        tools or no_tools(),
        interactions or load_interactions(None),
        Limits(**bounds),
        inference_template,
    )
    return env, engine


def no_tools() -> ToolSet:
    return load_tools(None, None, max_response=256, unit="characters", side="middle")


def tools_from(folder: Path, code: str, yaml: str) -> ToolSet:
    (folder / "mine.py").write_text(code)
    (folder / "mine.yaml").write_text(yaml)
    return load_tools(str(folder / "mine.yaml"), None, max_response=256, unit="characters", side="middle")


def row(uid: str = "r:0", text: str = "What is 2 + 3 ?", **extra_info: Any) -> Row:
    return Row(uid, [{"role": "user", "content": text}], reward_model={"ground_truth": "5"}, extra_info=extra_info)


def text_of(chat: Chat, ids: Sequence[int]) -> str:
    return chat.decode(ids)
