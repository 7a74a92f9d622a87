"""The sanity check in its three modes, per turn and per trajectory."""

import pytest

from agentrl.chat import Chat
from agentrl.errors import UserError
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.pairs import Pair, agreeing, by_name, case_id, chat_for, conversation
from tests.chat.realia import tokenizer

SPACED = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+2"}}\n</tool_call><|im_end|>'


def turn_ids(chat: Chat, text: str, observed: list[dict]) -> list[int]:
    return chat.template.encode(text) + [i for _, ids in chat.observation(observed, closed=True) for i in ids]


@pytest.mark.parametrize(
    ("text", "strict", "ignore_strippable"),
    [
        (SPACED, True, True),
        (SPACED.replace('": ', '":').replace(", ", ","), False, True),
        (SPACED.replace("\n", ""), False, True),
        (SPACED.replace("calculate", "calculator"), False, False),
        ("Well. " + SPACED, False, False),
    ],
)
def test_modes_per_turn(text: str, strict: bool, ignore_strippable: bool) -> None:
    observed = [result("4")]
    messages = [calls("2+2"), *observed]
    for mode, passes in {"strict": strict, "ignore_strippable": ignore_strippable, "disable": True}.items():
        chat = by_name("qwen2_5", mode)
        mismatch = chat.check_turn(messages, turn_ids(chat, text, observed), TOOLS)
        assert (mismatch is None) == passes, f"{mode}: {mismatch}"


def test_a_white_space_difference_passes_whatever_surrounds_it() -> None:
    # verl's rule looked at the difference with ten characters of context, which are never white space.
    chat = by_name("qwen2_5", "ignore_strippable")
    messages = [user("x"), answer("One line.\nAnother."), user("y"), answer("Done.")]
    ids = chat.transcript([*messages[:1], answer("One line.\n\nAnother."), *messages[2:]]).ids
    assert chat.check_trajectory(messages, ids) is None
    mismatch = by_name("qwen2_5").check_trajectory(messages, ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.rewritten_by) == (1, None)


def test_missing_newline_after_the_end_of_turn_is_found() -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), answer("Hi."), user("y"), answer("Done.")]
    ids = chat.transcript(messages).ids
    (newline,) = chat.template.encode("\n")
    (end,) = chat.template.encode("<|im_end|>")
    at = next(i for i in range(len(ids) - 1, 0, -1) if ids[i - 1] == end and ids[i] == newline)
    mismatch = chat.check_trajectory(messages, ids[:at] + ids[at + 1 :])
    assert mismatch is not None
    assert by_name("qwen2_5", "ignore_strippable").check_trajectory(messages, ids[:at] + ids[at + 1 :]) is None


def test_the_message_names_both_sides() -> None:
    chat = by_name("qwen3")
    messages = conversation("thinking, then user")
    mismatch = chat.check_trajectory(messages, chat.transcript(messages).ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.role, mismatch.rewritten_by) == (1, "assistant", 2)
    assert "They greet me." in mismatch.actual
    assert "They greet me." not in mismatch.expected
    assert str(mismatch).startswith("message 1 (assistant) was rewritten by message 2: the template shows ")


def test_per_turn_the_indices_count_from_the_assistant_message() -> None:
    chat = by_name("qwen3")
    ids = turn_ids(chat, "<think>\nHm.\n</think>\n\nHi.<|im_end|>", [user("y")])
    mismatch = chat.check_turn([answer("Hi.", reasoning_content="Hm."), user("y")], ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.rewritten_by) == (0, 1)
    assert chat.check_turn([calls("1", reasoning_content="Hm.")], chat.template.encode(thinking_call())) is None


def thinking_call() -> str:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1"}}\n</tool_call>'
    return f"<think>\nHm.\n</think>\n\n{call}<|im_end|>"


@pytest.mark.parametrize("stopped", [True, False])
def test_the_last_turn_may_lack_what_comes_after_its_stop_token(stopped: bool) -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), answer("Hi.")]
    ids = chat.transcript(messages).ids
    assert chat.check_trajectory(messages, ids if stopped else ids[:-1]) is None


def test_messages_that_no_longer_fitted_are_not_missed() -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), calls("2+2"), result("4")]
    assert chat.check_trajectory(messages, chat.transcript(messages).ids) is None


@pytest.mark.parametrize(("pair", "name"), agreeing("tools", "parallel"), ids=case_id)
def test_each_turn_agrees_where_the_trajectory_does(pair: Pair, name: str) -> None:
    chat, messages = chat_for(pair), conversation(name)
    ledger = chat.transcript(messages, pair.tools(name))
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, (at, following) in enumerate(zip(turns, [*turns[1:], len(messages)], strict=True)):
        ids = [i for i, t, source in zip(ledger.ids, ledger.turns, ledger.sources, strict=True) if t == turn and source]
        assert chat.check_turn(messages[at:following], ids, pair.tools(name)) is None


def test_a_template_that_refuses_is_a_mismatch_not_a_crash() -> None:
    chat = by_name("gptoss")
    messages = [answer("No call."), result("4")]
    mismatch = chat.check_turn(messages, chat.template.encode("x"))
    assert mismatch is not None
    assert "an error" in mismatch.expected


def test_a_long_conversation_costs_a_few_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen3")
    messages = [m for i in range(200) for m in (user(f"{i}?"), answer(f"{i}.", reasoning_content="Hm."))]
    ids = chat.transcript(messages).ids
    renders = []
    render = chat.template.render
    monkeypatch.setattr(chat.template, "render", lambda *a, **k: renders.append(1) or render(*a, **k))
    mismatch = chat.check_trajectory(messages, ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.rewritten_by) == (1, 2)
    assert len(renders) < 25


def test_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="'lax' is unknown; use one of disable, strict, ignore_strippable"):
        Chat(tokenizer("deepseek"), chat_template="{{ messages[0].content }}", check="lax")
