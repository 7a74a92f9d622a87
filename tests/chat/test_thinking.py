"""Turns that begin inside a think block, or after one: what `agentrl sft` trains on, and how a turn is read."""

import pytest

from agentrl.chat import Chat
from agentrl.chat.thinking import BLOCKS
from tests.chat.conversations import answer, calls, result, user
from tests.chat.pairs import PAIRS, Pair, case_id, chat_for
from tests.chat.realia import package, tokenizer
from tests.chat.small_templates import SWITCHED, THINKING, small_chat

pytestmark = pytest.mark.integration

TRL = sorted(path.stem for path in (package("trl") / "chat_templates").glob("*.jinja"))
TURNS = {
    "none": answer("Hi."),
    "some": answer("Hi.", reasoning_content="Hm."),
    "call": calls("1"),
    "call and thinking": calls("1", reasoning_content="Hm."),
}


def turns_of(chat: Chat, turn: dict) -> list[str]:
    """The text of each turn with its generation prompt, as it is trained on."""
    follow = [result("1")] if turn.get("tool_calls") else [user("y")]
    ledger = chat.transcript([user("x"), turn, *follow, answer("Bye.")])
    text = chat.decode(ledger.ids)
    opening = chat.base_for([], None).opening.split("<|im_start|>")[-1].split("\n")[0]
    return text.split(opening)[1:] if opening else [text]


def well_formed(text: str) -> bool:
    """At most one block, which closes after it opens."""
    return all(
        text.count(opening) <= 1 and text.count(closing) <= 1 and text.find(opening) <= text.find(closing)
        for opening, closing in BLOCKS.items()
    )


@pytest.mark.prevents(
    "supervised training on a doubled `</think>`, because the generation prompt opens or closes the block"
)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", THINKING)
def test_a_turn_has_one_think_block_at_most(name: str, turn: str) -> None:
    for text in turns_of(small_chat(THINKING[name]), TURNS[turn]):
        assert well_formed(text), text
        assert ("Hi." in text) + ('"1"' in text) + ("Bye." in text) == 1


@pytest.mark.parametrize(
    ("name", "trained"),
    [
        ("opens, always shown", "</think>Hi."),
        ("opens with a newline, always shown", "</think>Hi."),
        ("opens, the turn only closes", "</think>Hi."),
        ("opens with a newline, an empty block on one line", "</think>Hi."),
        ("opens, never shown", "\n</think>\n\nHi."),
        ("closes at once, always shown", "Hi."),
        ("closes at once, shown where there is some", "Hi."),
        ("brackets", "[/THINK]Hi."),
    ],
)
def test_a_turn_without_reasoning_ends_the_block_once(name: str, trained: str) -> None:
    chat = small_chat(THINKING[name])
    ledger = chat.transcript([user("x"), answer("Hi.")])
    assert chat.decode([i for i, mask in zip(ledger.ids, ledger.mask, strict=True) if mask]) == f"{trained}<|im_end|>"


def test_where_the_prompt_has_closed_the_block_reasoning_is_not_trained_on() -> None:
    chat = small_chat(THINKING["closes at once, shown where there is some"])
    ledger = chat.transcript([user("x"), TURNS["some"]])
    assert chat.decode(ledger.ids).endswith("<think>\n\n</think>\n\nHi.<|im_end|>")


def test_thinking_in_the_content_is_trained_on_once() -> None:
    ledger = small_chat(THINKING["opens, never shown"]).transcript([user("x"), answer("<think>\nHm.\n</think>\n\nHi.")])
    text = small_chat(THINKING["opens, never shown"]).decode(ledger.ids)
    assert text.endswith("<|im_start|>assistant\n<think>\nHm.\n</think>\n\nHi.<|im_end|>")


@pytest.mark.parametrize(
    "name", [name for name in TRL if "<think>" in (package("trl") / "chat_templates" / f"{name}.jinja").read_text()]
)
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}, {"enable_thinking": True}], ids=str)
def test_real_templates(name: str, kwargs: dict) -> None:
    source = (package("trl") / "chat_templates" / f"{name}.jinja").read_text()
    chat = Chat(tokenizer("qwen"), chat_template=source, template_kwargs=kwargs, check="disable")
    for turn in ("none", "some"):
        ledger = chat.transcript([user("x"), TURNS[turn], user("y"), answer("Bye.")])
        sampled = [[], []]
        for token, mask, number in zip(ledger.ids, ledger.mask, ledger.turns, strict=True):
            if mask:
                sampled[number].append(token)
        for ids in sampled:
            text = chat.decode(ids)
            assert text.count("</think>") <= 1, text
            assert "<think>" not in text.partition("</think>")[2], text


@pytest.mark.parametrize("pair", PAIRS, ids=case_id)
def test_a_turn_is_read_alike_with_and_without_the_ids_before_it(pair: Pair) -> None:
    chat = chat_for(pair)
    ids = chat.template.encode("Hm.\n</think>\n\nHi.")
    lead = chat.prompt([user("x")])
    assert chat.parse(ids, lead=lead) == chat.parse(ids)


def test_a_turn_after_no_think_is_not_taken_for_a_thought() -> None:
    chat = small_chat(SWITCHED)
    ids = chat.template.encode('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    on, off = (chat.prompt([{"role": "system", "content": word}, user("x")]) for word in ("", "/no_think"))
    assert [call.name for call in chat.parse(ids, lead=off).calls] == ["f"]
    assert chat.parse(ids, lead=off).message["content"] == ""
    assert "<think>" in chat.parse(ids, lead=on).message["content"]
