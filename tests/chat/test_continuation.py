"""use_inference_chat_template: append where the template agrees with the ledger, split where it rewrote history."""

import pytest

from agentrl.chat import Chat, Split
from agentrl.trajectory.ledger import Source
from tests.chat.conversations import answer, calls, result, user
from tests.chat.pairs import Pair, agreeing, by_name, case_id, chat_for, conversation


def begin(chat: Chat, messages: list[dict], text: str) -> list[int]:
    return [*chat.prompt(messages), *chat.template.encode(text)]


def test_append_adds_what_observation_adds() -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), calls("2+2"), result("4")]
    ids = chat.transcript(messages).ids
    step = chat.continuation(ids, messages)
    assert step == chat.observation([result("4")], closed=True)


@pytest.mark.parametrize(("pair", "name"), agreeing("parallel"), ids=case_id)
def test_append_equals_observation_over_real_templates(pair: Pair, name: str) -> None:
    chat, messages, tools = chat_for(pair), conversation(name)[:4], pair.tools(name)
    ids = chat.transcript(messages, tools).ids
    if not pair.stop:
        ids = [*ids[:-1], *chat.template.encode("<|observation|>")]
    step = chat.continuation(ids, messages, tools)
    assert isinstance(step, list), pair.name
    assert step == chat.observation(messages[2:], closed=True, last=ids[-1])


def test_stripped_thinking_splits_and_the_new_sample_is_what_inference_shows() -> None:
    chat = by_name("qwen3")
    messages = [user("x"), answer("Hi.", reasoning_content="Hm."), user("y")]
    step = chat.continuation(begin(chat, messages[:1], "<think>\nHm.\n</think>\n\nHi.<|im_end|>"), messages)
    assert step == Split(chat.prompt(messages))
    assert "Hm." not in chat.decode(step.ids)


def test_thinking_within_one_query_appends() -> None:
    chat = by_name("qwen3")
    messages = conversation("thinking")[:3]
    ids = chat.transcript(messages).ids
    assert isinstance(chat.continuation(ids, messages), list)


def test_another_tokenization_of_the_same_text_appends_and_keeps_the_sampled_ids() -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), answer("Goethe"), user("y")]
    letters = [i for letter in "Goethe" for i in chat.template.encode(letter)]
    ids = [*chat.prompt(messages[:1]), *letters, *chat.template.encode("<|im_end|>")]
    assert letters != chat.template.encode("Goethe")
    assert chat.continuation(ids, messages) == chat.observation([user("y")], closed=True)


def test_a_turn_cut_by_length_gets_its_end() -> None:
    chat = by_name("qwen2_5")
    messages = [user("x"), answer("Hi."), user("y")]
    step = chat.continuation(begin(chat, messages[:1], "Hi."), messages)
    assert isinstance(step, list)
    assert step == chat.observation([user("y")], closed=False)
    assert step[0][0] is Source.TEMPLATE


def test_a_call_spelled_otherwise_than_the_template_does_splits() -> None:
    chat = by_name("qwen2_5")
    text = '<tool_call>{"name":"calculate","arguments":{"expression":"2+2"}}</tool_call>'
    message = chat.read(text).message
    messages = [user("x"), message, result("4")]
    assert isinstance(chat.continuation(begin(chat, messages[:1], text + "<|im_end|>"), messages), Split)


def test_bytes_that_are_no_text_split_rather_than_repeat() -> None:
    chat = by_name("qwen2_5")
    half = chat.template.encode("🙂")[:1]
    messages = [user("x"), answer(chat.decode(half)), user("y")]
    ids = [*chat.prompt(messages[:1]), *half, *chat.template.encode("<|im_end|>")]
    step = chat.continuation(ids, messages)
    # The decoded replacement character renders as itself: same text on both sides, and the sampled ids stay.
    assert isinstance(step, list)
    assert half[0] not in [i for _, segment in step for i in segment]


def test_what_a_template_refuses_goes_on_as_it_stands() -> None:
    """gpt-oss's template knows no result of a call that could not be read."""
    chat = by_name("gptoss")
    text = "<|channel|>commentary to=functions.f<|message|>{<|call|>"
    reply = chat.read(text.removesuffix("<|call|>"))
    (call,) = reply.calls
    answered = {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": str(call.error)}
    ids = begin(chat, [user("x")], text)
    step = chat.continuation(ids, [user("x"), reply.message, answered])
    assert step == chat.observation([answered], closed=True)
