"""configs/templates: what they show, and that a small model's prompt stays short. Append-only: see the pairs."""

import json

import pytest

from agentrl.chat import Chat
from agentrl.core.errors import UserError
from tests.chat.conversations import TOOLS, calls, result, user
from tests.chat.pairs import by_name
from tests.chat.realia import tokenizer

PROPERTIES = {
    "query": {"type": "string", "description": "What to look for."},
    "sort": {"type": "string", "enum": ["new", "old"]},
    "ids": {"type": "array", "items": {"type": "integer"}},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
    "where": {"type": "object", "properties": {"x": {"type": "number"}}},
    "any": {},
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the notes.\nSlow.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["query"]},
    },
}


def prompt(template: str, messages: list[dict], tools: list[dict] | None = None) -> str:
    chat = by_name(template)
    return chat.decode(chat.prompt(messages, tools))


def test_full_template_shows_the_whole_schema() -> None:
    text = prompt("chatml_tools", [user("x")], [SEARCH])
    assert json.dumps(SEARCH) in text


def test_compact_template_shows_one_line_a_tool() -> None:
    text = prompt("chatml_tools_compact", [user("x")], [SEARCH, *TOOLS])
    lines = text.splitlines()
    optional = 'sort?: "new"|"old", ids?: integer[], limit?: integer|null, where?: object, any?: any'
    assert lines[:5] == [
        "<|im_start|>system",
        "Tools:",
        f"search(query: string, {optional}) - Search the notes.",
        "calculate(expression: string) - Evaluate an arithmetic expression.",
        'Call: <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>',
    ]


def test_compact_prompt_stays_near_sixty_tokens() -> None:
    chat = by_name("chatml_tools_compact")
    assert len(chat.prompt([user("What is 17 * 23?")], TOOLS)) <= 65


@pytest.mark.parametrize("template", ["chatml_tools", "chatml_tools_compact", "chatml_tools_terse"])
def test_a_system_block_only_where_there_is_something_to_say(template: str) -> None:
    assert prompt(template, [user("Hi")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    brief = {"role": "system", "content": "Be brief."}
    assert prompt(template, [brief, user("Hi")]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    both = prompt(template, [brief, user("Hi")], TOOLS)
    assert both.startswith("<|im_start|>system\nBe brief.\n\n")
    assert both.count("<|im_start|>") == 3


@pytest.mark.parametrize("template", ["chatml_tools", "chatml_tools_compact", "chatml_tools_terse"])
def test_calls_and_results(template: str) -> None:
    chat = by_name(template)
    ledger = chat.transcript(
        [user("x"), calls("1", "2", text="Two."), result("a"), result("b", 1), calls("3"), result("c")]
    )
    assert chat.decode(ledger.ids[ledger.prompt_length :]) == (
        'Two.\n<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call>\n'
        '<tool_call>{"name": "calculate", "arguments": {"expression": "2"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>{"name": "calculate", "arguments": {"expression": "3"}}</tool_call><|im_end|>'
    )


def test_a_template_may_be_named_by_its_file() -> None:
    chat = Chat(tokenizer("smollm2"), chat_template="configs/templates/chatml_tools_compact.jinja")
    assert chat.prompt([user("x")], TOOLS) == by_name("chatml_tools_compact").prompt([user("x")], TOOLS)
    with pytest.raises(UserError, match=r"model\.chat_template: nowhere\.jinja does not exist"):
        Chat(tokenizer("smollm2"), chat_template="nowhere.jinja")


def test_a_tokenizer_without_a_template_says_what_to_set() -> None:
    with pytest.raises(UserError, match=r"^model\.chat_template: this tokenizer has no chat template"):
        Chat(tokenizer("deepseek"))


def test_template_kwargs_reach_the_template() -> None:
    qwen3 = by_name("qwen3")
    chat = Chat(tokenizer("qwen"), chat_template=qwen3.template.source, template_kwargs={"enable_thinking": False})
    assert chat.decode(chat.prompt([user("x")])).endswith("<think>\n\n</think>\n\n")
    assert chat.observation([user("x")], closed=True)[-1][1] == chat.template.encode(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
