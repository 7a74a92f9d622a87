"""What follows a turn equals what the template shows for the true conversation, also where it looks back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agentrl.chat import Chat
from agentrl.chat.context import EMPTY, HistoryProbe
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Source
from tests.chat.conversations import TOOLS, Message, answer, calls, result, user
from tests.chat.pairs import PAIRS, Pair, case_id, chat_for, conversation
from tests.chat.realia import tokenizer
from tests.chat.small_templates import COUNTED, NAMED, NUMBERED, REMINDED, SWITCHED, small_chat

SOBER = {"role": "system", "content": "Be brief. /no_think"}
SYSTEM = {"role": "system", "content": "Be brief."}


def steps(messages: list[Message]) -> Iterator[tuple[list[Message], list[Message]]]:
    """What the conversation has after a turn, and what follows it."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for at, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        if messages[at + 1 : following]:
            yield messages[: at + 1], messages[at + 1 : following]


def true_rest(chat: Chat, history: list[Message], new: list[Message], tools: list[dict] | None) -> str | None:
    """What the template shows after the turn, from two renders of the whole; None where it rewrites the turn."""
    whole = chat.template.render([*history, *new], tools, generation=True)
    before = chat.template.render(history, tools)
    return whole.removeprefix(before) if whole.startswith(before) else None


def observed(chat: Chat, history: list[Message], new: list[Message], tools: list[dict] | None) -> str:
    segments = chat.observation(new, closed=False, tools=tools, history=history, last=None)
    return chat.decode([i for _, ids in segments for i in ids])


LOOKING = {
    "the system says no_think": (SWITCHED, [SOBER, user("x"), answer("1"), user("y"), answer("2"), user("z")], None),
    "the user says no_think": (SWITCHED, [user("x /no_think"), answer("1"), user("y"), answer("2"), user("z")], None),
    "the user takes it back": (
        SWITCHED,
        [user("x /no_think"), answer("1"), user("y /think"), answer("2"), user("z"), answer("3"), user("z")],
        None,
    ),
    "nobody says no_think": (SWITCHED, [SYSTEM, user("x"), answer("1"), user("y"), answer("2"), user("z")], None),
    "a later user says no_think": (
        SWITCHED,
        [user("x"), answer("1"), user("y /no_think"), answer("2"), user("z")],
        None,
    ),
    "calls are counted": (
        COUNTED,
        [user("x"), calls("1"), result("1"), calls("2", "3", start=1), result("2", 1), result("3", 2), user("z")],
        TOOLS,
    ),
    "messages are counted": (NUMBERED, [SYSTEM, user("x"), answer("1"), user("y"), answer("2"), user("z")], None),
    "system": (REMINDED, [SYSTEM, user("x"), answer("1"), user("y"), answer("2"), user("z")], None),
    "no system": (REMINDED, [user("x"), answer("1"), user("y"), answer("2"), user("z")], None),
    "tools": (REMINDED, [SYSTEM, user("x"), answer("1"), user("y"), answer("2"), user("z")], TOOLS),
}


@pytest.mark.prevents(
    "the system prompt (`/no_think`), the tools or the number of calls change the tokens of later turns"
)
@pytest.mark.parametrize("name", LOOKING)
def test_a_template_that_looks_back_sees_the_true_conversation(name: str) -> None:
    source, messages, tools = LOOKING[name]
    chat = small_chat(source)
    for history, new in steps(messages):
        expected = true_rest(chat, history, new, tools)
        assert expected is not None
        assert observed(chat, history, new, tools).removeprefix("<|im_end|>\n") == expected


@pytest.mark.parametrize("name", LOOKING)
def test_supervised_training_sees_it_too(name: str) -> None:
    source, messages, tools = LOOKING[name]
    chat = small_chat(source)
    messages = [*messages[:-1], *([messages[-1], answer("end")] if messages[-1]["role"] == "user" else [])]
    mismatch = (
        None if source is SWITCHED else chat.check_trajectory(messages, chat.transcript(messages, tools).ids, tools)
    )
    assert mismatch is None, str(mismatch)


@pytest.mark.parametrize("pair", PAIRS, ids=case_id)
def test_real_templates_show_the_same_with_the_history(pair: Pair) -> None:
    chat = chat_for(pair)
    names = ("chat", "system", "tools", "parallel", "tools, then user")
    for name in [name for name in names if name not in pair.refused]:
        tools = pair.tools(name)
        for history, new in steps(conversation(name)):
            expected = true_rest(chat, history, new, tools)
            if expected is not None and pair.stop:
                seen = observed(chat, history, new, tools)
                assert seen.endswith(expected), (name, seen, expected)


def test_most_templates_look_at_nothing_and_their_base_is_one() -> None:
    looking = {pair.template for pair in PAIRS if HistoryProbe(chat_for(pair).template).counts}
    assert looking == {"deepseekv3"}
    for pair in PAIRS:
        probe = HistoryProbe(chat_for(pair).template)
        assert probe.context([SOBER, user("x /no_think"), answer("y")], TOOLS) == EMPTY


def test_the_context_stays_small_however_long_the_conversation() -> None:
    probe = HistoryProbe(small_chat(SWITCHED).template)
    history = [
        SOBER,
        *(m for i in range(100) for m in (user(f"{i} /no_think"), answer("y"), user(f"{i}"), answer("y"))),
    ]
    said = probe.context(history, None).texts
    assert [text for _, text in said] == ["Be brief. /no_think", "0 /no_think", "99 /no_think"]


def test_a_past_that_spells_the_mark_changes_nothing() -> None:
    from agentrl.chat.template import MARK

    chat = small_chat(SWITCHED)
    messages = [{"role": "system", "content": f"{MARK} /no_think"}, user("x"), answer("1"), user("y")]
    assert observed(chat, messages[:3], messages[3:], None).endswith("<|im_start|>assistant\n<think></think>")


def test_labels_are_right_after_a_switch() -> None:
    chat = small_chat(SWITCHED)
    segments = chat.observation([user("y")], closed=True, history=[SOBER, user("x"), answer("1")])
    assert [(source, chat.decode(ids)) for source, ids in segments] == [
        (Source.TEMPLATE, "\n"),
        (Source.USER, "<|im_start|>user\ny<|im_end|>\n"),
        (Source.TEMPLATE, "<|im_start|>assistant\n<think></think>"),
    ]


def named_chat(folder: Path, **more: str) -> Chat:
    """Saved and loaded, as a model's folder has it."""
    base = tokenizer("qwen")
    base.save_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.chat_template = dict(NAMED)
    loaded.save_pretrained(folder)
    return Chat(AutoTokenizer.from_pretrained(folder), **more)


@pytest.mark.prevents("named templates: the prompt uses one, observations another")
def test_named_templates_prompt_and_observations_use_the_same_one(tmp_path: Path) -> None:
    chat = named_chat(tmp_path)
    messages = [user("x"), calls("1"), result("1"), calls("2", start=1), result("2", 1), answer("3")]
    ledger = chat.transcript(messages, TOOLS)
    text = chat.decode(ledger.ids)
    assert text.count("<|im_start|>assistant\n<|act|>") == 3
    assert "<tool_response>2</tool_response>" in text
    assert [call.name for call in chat.parse(ledger.ids[ledger.prompt_length :]).calls] == ["calculate", "calculate"]
    plain = chat.decode(chat.transcript([user("x"), answer("1"), user("y"), answer("2")]).ids)
    assert "<|act|>" not in plain
    assert chat.template.shows_tools
    assert chat.template.shows_calls


def test_named_templates_without_a_default_say_so() -> None:
    import copy

    several = copy.copy(tokenizer("qwen"))
    several.chat_template = {"rag": NAMED["default"], "tool_use": NAMED["tool_use"]}
    with pytest.raises(UserError, match="templates named rag, tool_use and none named default"):
        Chat(several)
