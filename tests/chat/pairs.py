"""Template and tokenizer pairs, and what each does with each conversation."""

from dataclasses import dataclass, field
from functools import cache

from agentrl.chat import Chat
from tests.chat.conversations import CONVERSATIONS, TOOLS, Message, uses_tools
from tests.chat.realia import template, tokenizer

Rewrite = tuple[int, int | None]
"""The message that reads differently, and the one that rewrote it (None: it never read as in the ledger)."""

WITH_TOOLS = frozenset(name for name, messages in CONVERSATIONS.items() if uses_tools(messages))
AFTER_USER = {"chat": (1, 2), "system": (2, 3), "unicode": (1, 2), "empty": (1, 2), "thinking, then user": (1, 2)}
"""A user message rewrites the answer before it."""


@dataclass(frozen=True)
class Pair:
    """What is not named in `rewritten`, `refused` or `other_tokens` must equal the one-shot tokenization."""

    template: str | None
    """None: the tokenizer's own."""
    family: str
    format: str
    stop: str
    """Written out, so that the tests do not take it from the code they test."""
    rewritten: dict[str, Rewrite] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    """Conversations that the template cannot show: UserError."""
    other_tokens: frozenset[str] = frozenset()
    """Same text, other tokens: the generation prompt ends in a newline and the turn begins with one. One-shot
    tokenization joins them; a model cannot."""
    tool_prompt: bool = True
    """The template shows the tools; otherwise conversations with tool messages run without a tools prompt."""

    @property
    def name(self) -> str:
        return f"{self.template or 'own'} x {self.family}"

    def tools(self, conversation: str) -> list[dict] | None:
        return TOOLS if self.tool_prompt and conversation in WITH_TOOLS else None


QWEN3 = AFTER_USER | dict.fromkeys(WITH_TOOLS - {"thinking"}, (1, 2))
QWEN3_5 = AFTER_USER | {"tools, then user": (1, 4)}
GPT_OSS = AFTER_USER | {"spoken call": (1, 3), "tools, then user": (3, 4), "thinking": (1, 3)}
# DeepSeek's own template opens a think block for the model and shows finished turns without it.
DEEPSEEK_V3 = {name: (2 if name == "system" else 1, None) for name in CONVERSATIONS}
ONE_CALL = frozenset({"parallel"})
SHORT_THOUGHT = frozenset(CONVERSATIONS) - frozenset({"thinking", "thinking, then user"})

PAIRS = [
    Pair("qwen2_5", "qwen", "hermes", "<|im_end|>"),
    Pair("qwen2_5_training", "qwen", "hermes", "<|im_end|>"),
    Pair("qwen3", "qwen", "hermes", "<|im_end|>", rewritten=QWEN3),
    Pair("qwen3_training", "qwen", "hermes", "<|im_end|>"),
    Pair("qwen3_instruct_2507", "qwen", "hermes", "<|im_end|>"),
    Pair("qwen3_5_think", "qwen", "qwen3_coder", "<|im_end|>", QWEN3_5, other_tokens=SHORT_THOUGHT),
    Pair("qwen3_5_think_training", "qwen", "qwen3_coder", "<|im_end|>", other_tokens=SHORT_THOUGHT),
    Pair("llama3", "llama3", "llama3_json", "<|eot_id|>", refused=WITH_TOOLS),
    Pair("llama3_1", "llama3", "llama3_json", "<|eot_id|>", refused=ONE_CALL),
    Pair("llama3_2", "llama3", "llama3_json", "<|eot_id|>", refused=ONE_CALL),
    Pair("deepseek_v3_1", "deepseek", "deepseek", "<｜end▁of▁sentence｜>"),
    Pair("deepseekv3", "deepseek", "deepseek", "<｜end▁of▁sentence｜>", DEEPSEEK_V3, tool_prompt=False),
    Pair("chatml_tools", "smollm2", "hermes", "<|im_end|>"),
    Pair("chatml_tools_compact", "smollm2", "hermes", "<|im_end|>"),
    Pair("chatml_tools_terse", "smollm2", "hermes", "<|im_end|>"),
    Pair(None, "smollm2", "hermes", "<|im_end|>", refused=WITH_TOOLS),
    Pair("chatml_tools", "qwen", "hermes", "<|im_end|>"),
    Pair("glm4moe", "glm", "glm", "", rewritten={"thinking, then user": (1, 2)}),
    Pair("gptoss", "gpt_oss", "gpt_oss", "<|return|>", GPT_OSS),
    Pair("lfm2_2_5", "lfm2", "pythonic", "<|im_end|>", {"thinking, then user": (1, 2)}),
    Pair("gemma3", "gemma", "hermes", "<end_of_turn>", refused=WITH_TOOLS),
    Pair("phi3_5", "phi", "hermes", "<|end|>", refused=WITH_TOOLS),
    Pair("cohere2", "cohere", "hermes", "<|END_OF_TURN_TOKEN|>", refused=WITH_TOOLS),
    Pair("mistral_v3", "mistral", "mistral", "</s>", {"tools, then user": (0, 4)}, refused=frozenset({"system"})),
    Pair("mistral_v11", "mistral", "mistral", "</s>"),
    Pair("kimi_k2", "kimi", "kimi", "<|im_end|>"),
]

CASES = [(pair, name) for pair in PAIRS for name in CONVERSATIONS]


def agreeing(*names: str) -> list[tuple[Pair, str]]:
    """Cases of these conversations that a template shows and never rewrites."""
    return [(pair, name) for pair, name in CASES if name in names and name not in pair.refused | pair.rewritten.keys()]


@cache
def _chat(source: str | None, family: str, format: str, check: str) -> Chat:
    return Chat(tokenizer(family), format=format, chat_template=template(source) if source else None, check=check)


def chat_for(pair: Pair, check: str = "strict") -> Chat:
    return _chat(pair.template, pair.family, pair.format, check)


def by_name(name: str, check: str = "strict") -> Chat:
    """The chat of the first pair with this template."""
    return chat_for(next(pair for pair in PAIRS if (pair.template or pair.family) == name), check)


def conversation(name: str) -> list[Message]:
    return CONVERSATIONS[name]


def case_id(case: object) -> str:
    return case.name if isinstance(case, Pair) else str(case)
