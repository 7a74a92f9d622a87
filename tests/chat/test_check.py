"""The sanity check in its three modes, per turn and per trajectory."""

import gc
import weakref

import pytest

from agentrl.chat import Chat
from agentrl.chat.check import Comparison
from agentrl.core.errors import UserError
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.pairs import by_name, conversation
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
def test_modes(text: str, strict: bool, ignore_strippable: bool) -> None:
    observed = [result("4")]
    messages = [user("x"), calls("2+2"), *observed, answer("4.")]
    for mode, passes in {"strict": strict, "ignore_strippable": ignore_strippable, "disable": True}.items():
        chat = by_name("qwen2_5", mode)
        ids = [*chat.prompt([user("x")], TOOLS), *turn_ids(chat, text, observed), *chat.template.encode("4.<|im_end|>")]
        mismatch = chat.check_trajectory(messages, ids, TOOLS)
        assert (mismatch is None) == passes, f"{mode}: {mismatch}"


@pytest.mark.prevents("a check that should ignore white space warns about it")
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


def test_untraced_the_verdict_is_the_same_and_nothing_more_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen3")
    messages = conversation("thinking, then user")
    ids = chat.transcript(messages).ids
    renders = []
    render = chat.template.render
    monkeypatch.setattr(chat.template, "render", lambda *args, **kwargs: renders.append(1) or render(*args, **kwargs))
    found = chat.check_trajectory(messages, ids, trace=False)
    assert len(renders) == 1
    traced = chat.check_trajectory(messages, ids)
    assert found is not None
    assert traced is not None
    assert (found.expected, found.actual, found.message, found.more) == (traced.expected, traced.actual, None, ())
    assert str(found).startswith("the conversation differs: the template shows ")
    agreeing = [user("x"), answer("Hi.")]
    assert chat.check_trajectory(agreeing, chat.transcript(agreeing).ids, trace=False) is None


def test_a_groups_prompt_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen2_5")
    renders = []
    render = chat.template.render
    monkeypatch.setattr(chat.template, "render", lambda *args, **kwargs: renders.append(1) or render(*args, **kwargs))
    first = chat.prompt([user("A prompt of its own.")], TOOLS)
    first.append(7)  # callers may change what they get
    again = chat.prompt([user("A prompt of its own.")], TOOLS)
    assert again == chat.template.encode(render([user("A prompt of its own.")], TOOLS, generation=True))
    assert len(renders) == 1
    assert chat.prompt([user("A prompt of its own.")]) != again
    assert chat.prompt([user("Another.")], TOOLS) != again


def test_the_message_names_both_sides() -> None:
    chat = by_name("qwen3")
    messages = conversation("thinking, then user")
    mismatch = chat.check_trajectory(messages, chat.transcript(messages).ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.role, mismatch.rewritten_by) == (1, "assistant", 2)
    assert "They greet me." in mismatch.actual
    assert "They greet me." not in mismatch.expected
    assert str(mismatch).startswith("message 1 (assistant) was rewritten by message 2: the template shows ")


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


def test_a_template_that_refuses_is_a_mismatch_not_a_crash() -> None:
    chat = by_name("gptoss")
    messages = [user("x"), answer("No call."), result("4"), answer("4.")]
    mismatch = chat.check_trajectory(messages, chat.template.encode("x"))
    assert mismatch is not None
    assert "an error" in mismatch.expected


def test_a_long_conversation_costs_a_few_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen3")
    messages = [m for i in range(200) for m in (user(f"{i}?"), answer(f"{i}.", reasoning_content="Hm."))]
    ids = chat.transcript(messages).ids
    renders = []
    render = chat.template.render
    monkeypatch.setattr(chat.template, "render", lambda seen, *a: renders.append(len(seen)) or render(seen, *a))
    mismatch = chat.check_trajectory(messages, ids)
    assert mismatch is not None
    assert (mismatch.message, mismatch.rewritten_by) == (1, 2)
    assert [(later.message, later.rewritten_by) for later in mismatch.more] == [(i, i + 1) for i in range(3, 17, 2)]
    assert str(mismatch).endswith("; perhaps more")
    # Eight differences for the price of two renders of the whole.
    assert sum(renders) < 2 * len(messages)


def test_one_report_names_every_turn_that_reads_differently() -> None:
    chat = by_name("qwen2_5")
    said = [user("x"), answer("One."), user("y"), answer("Two."), user("z"), answer("Three.")]
    wrote = [*said[:1], answer("1."), *said[2:4], user("zz"), answer("3.")]
    mismatch = chat.check_trajectory(said, chat.transcript(wrote).ids)
    assert mismatch is not None
    found = [mismatch, *mismatch.more]
    assert [(m.message, m.rewritten_by) for m in found] == [(1, None), (4, None), (5, None)]
    assert "'...Three.'" not in str(found[0])
    assert all(f"message {m.message} (" in str(mismatch) for m in found)
    same = chat.transcript([*said[:1], answer("1."), *said[2:]])
    mismatch = chat.check_trajectory(said, same.ids)
    assert mismatch is not None
    assert mismatch.more == ()


def test_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="'lax' is unknown; use one of disable, strict, ignore_strippable"):
        Chat(tokenizer("deepseek"), chat_template="{{ messages[0].content }}", check="lax")


def test_a_comparison_is_freed_with_its_last_reference() -> None:
    chat = by_name("qwen2_5")
    gc.disable()
    try:
        comparison = Comparison(chat.template, chat._segmenter.base, [user("x"), answer("Hi.")], None, "", "strict")
        assert comparison.partial(2) is comparison.partial(2)
        reference = weakref.ref(comparison)
        del comparison
        assert reference() is None
    finally:
        gc.enable()
