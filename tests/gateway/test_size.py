"""Histories that cannot fit are refused before they are read, hashed or rendered."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agentrl.chat import Chat
from agentrl.gateway.conversation import Conversation
from agentrl.gateway.ledger_tree import LedgerTree
from agentrl.gateway.protocols import chat
from agentrl.gateway.request import TurnRequest
from agentrl.gateway.size import MESSAGE_TOKENS
from agentrl.http.refusals import Refused
from tests.chat.pairs import by_name
from tests.rollout.scripted import make_chat

ASKED, SAID = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
TEMPLATES = ("qwen3_training", "llama3_1", "deepseek_v3_1")


def test_more_items_than_fit_are_not_read() -> None:
    def read(items: Any, first: int) -> Any:
        raise AssertionError("the items are read")

    with pytest.raises(Refused, match="maximum context length is 4096 tokens") as caught:
        LedgerTree(make_chat(), 4096).begin(TurnRequest(Conversation([], [{}] * 5000, read)))
    assert caught.value.fault == "context"


def test_more_calls_than_fit_are_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = [ASKED, {**SAID, "tool_calls": [call] * 5000}, ASKED]
    tree = LedgerTree(make_chat(), 4096)
    monkeypatch.setattr(tree, "_new", None)
    with pytest.raises(Refused, match="maximum context length is 4096 tokens"):
        tree.begin(chat.read({"messages": said}))


def test_many_messages_that_fit_are_rendered() -> None:
    tree = LedgerTree(make_chat(), 100_000)
    said = [ASKED, *[SAID, ASKED] * 1000]
    assert len(tree.begin(chat.read({"messages": said})).ids) > len(said)


@pytest.mark.parametrize("chat_of", [make_chat, *(partial(by_name, name) for name in TEMPLATES)])
def test_no_message_takes_fewer_tokens_than_the_bound(chat_of: Callable[[], Chat]) -> None:
    said = [{**message, "content": ""} for message in [ASKED, *[SAID, ASKED] * 20]]
    assert MESSAGE_TOKENS * len(said) <= len(chat_of().prompt(said, []))
