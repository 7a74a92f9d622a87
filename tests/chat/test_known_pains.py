"""What hurt users of other frameworks, one test each."""

import pytest

from agentrl.chat import Chat
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Ledger, Source
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.pairs import by_name


def play(chat: Chat, turns: list[list[int]], replies: list[list[dict]]) -> Ledger:
    """Sampled turns and what follows each, through parse and observation, as a rollout goes."""
    ledger = Ledger()
    ledger.append_prompt(chat.prompt([user("x")], TOOLS))
    for turn, ids in enumerate(turns):
        reply = chat.parse(ids)
        ledger.append_model(ids, [-1.0] * len(ids), turn=turn, version=0)
        if turn < len(replies):
            for source, segment in chat.observation(replies[turn], closed=reply.closed, last=ids[-1]):
                ledger.append_observation(segment, source, turn=turn)
    ledger.check()
    return ledger


@pytest.mark.prevents("training tokens differ from sampled ones: decoded, parsed, rendered again")
def test_sampled_tokens_are_trained_on_as_they_are() -> None:
    """Decoding, parsing and rendering again changed tokens under the model's feet."""
    chat = by_name("qwen2_5")
    encode = chat.template.encode
    odd = [i for letter in '<tool_call>{"name":"calculate", "arguments":{}}</tool_call>' for i in encode(letter)]
    broken = [*encode("half an emoji ")[:-1], encode("🙂")[0]]
    turns = [[*odd, *encode("<|im_end|>")], [*broken, *encode("<|im_end|>")]]
    ledger = play(chat, turns, [[result("4")]])
    sampled = [i for i, mask in zip(ledger.ids, ledger.mask, strict=True) if mask]
    assert sampled == [*turns[0], *turns[1]]


def test_the_newline_after_the_end_of_turn_is_there_and_not_the_models() -> None:
    chat = by_name("qwen2_5")
    ids = chat.template.encode("Hi.<|im_end|>")
    ledger = play(chat, [ids], [[user("y")]])
    end = ledger.prompt_length + len(ids)
    assert ledger.mask[end - 1] == 1
    assert (chat.decode([ledger.ids[end]]), ledger.mask[end], ledger.sources[end]) == ("\n", 0, Source.TEMPLATE)


@pytest.mark.prevents("templates strip thinking or add it back")
def test_thinking_stays_in_the_ledger_though_the_template_strips_it() -> None:
    chat = by_name("qwen3")
    ids = chat.template.encode("<think>\nHm.\n</think>\n\nHi.<|im_end|>")
    ledger = play(chat, [ids, chat.template.encode("Bye.<|im_end|>")], [[user("y")]])
    assert chat.decode(ledger.ids).count("Hm.") == 1
    assert chat.decode(ledger.ids).count("<think>") == 1


@pytest.mark.parametrize("mode", ["strict", "ignore_strippable", "disable"])
def test_the_sanity_check_mode_does_something(mode: str) -> None:
    chat = by_name("qwen2_5", mode)
    messages = [user("x"), answer("Hi.  ")]
    spaces, words = (chat.transcript([user("x"), answer(text)]).ids for text in ("Hi.", "Ho."))
    found = [chat.check_trajectory(messages, ids) is not None for ids in (spaces, words)]
    assert found == {"strict": [True, True], "ignore_strippable": [False, True], "disable": [False, False]}[mode]


def test_white_space_differences_pass_when_told_to() -> None:
    """The old rule stripped a difference together with its neighbours, so nothing ever passed."""
    chat = by_name("qwen2_5", "ignore_strippable")
    one_newline = chat.transcript([user("What is it?"), answer("It is\nfour.")]).ids
    assert chat.check_trajectory([user("What is it?"), answer("It is\n\nfour.")], one_newline) is None


@pytest.mark.prevents("the cost of a turn grows with the history")
def test_the_history_is_not_rendered_again_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen2_5")
    work: list[int] = []
    render, encode, decode = chat.template.render, chat.template.encode, chat.template.decode
    monkeypatch.setattr(chat.template, "render", lambda *a, **k: counted(work, render(*a, **k)))
    monkeypatch.setattr(chat.template, "encode", lambda text: counted(work, encode(text), len(text)))
    monkeypatch.setattr(chat.template, "decode", lambda ids: counted(work, decode(ids), len(ids)))
    ids = encode('<tool_call>\n{"name": "calculate", "arguments": {"expression": "1"}}\n</tool_call><|im_end|>')
    per_turn, history = [], [user("x"), calls("1")]
    for _ in range(50):
        work.clear()
        message = chat.parse(ids, lead=encode("<|im_start|>assistant\n")).message
        chat.observation([result("4")], closed=True, history=history)
        history += [message, result("4")]
        per_turn.append(sum(work))
    assert per_turn[1] == per_turn[49]


def counted(work: list[int], value: object, size: int | None = None) -> object:
    work.append(len(value) if size is None else size)  # type: ignore[arg-type]
    return value


@pytest.mark.prevents("an end of turn that the framework adds is trained on")
def test_an_end_of_turn_that_the_framework_adds_is_not_trained_on() -> None:
    chat = by_name("qwen2_5")
    cut = chat.template.encode("I was cut o")
    ledger = play(chat, [cut], [[user("y")]])
    (end,) = chat.template.encode("<|im_end|>")
    assert ledger.ids[ledger.prompt_length + len(cut)] == end
    assert sum(ledger.mask) == len(cut)


@pytest.mark.prevents("a call that cannot be parsed gets no answer, again and again")
def test_a_malformed_call_comes_back_to_the_model() -> None:
    chat = by_name("qwen2_5")
    reply = chat.parse(chat.template.encode('<tool_call>{"name": "calculate", "arguments": {"x": 1}<|im_end|>'))
    (call,) = reply.calls
    assert call.error is not None
    answered = {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": call.error}
    shown = chat.decode([i for _, ids in chat.observation([answered], closed=True) for i in ids])
    assert "invalid JSON" in shown
    assert "<tool_call>{" in shown


@pytest.mark.parametrize("messages", [[user("x")], [answer("x")], [user("x"), answer("a"), answer("b")]])
def test_a_transcript_that_cannot_be_one_says_why(messages: list[dict]) -> None:
    with pytest.raises(UserError, match="^messages: "):
        by_name("qwen2_5").transcript(messages)


def test_parquet_and_openai_spellings_of_the_same_messages() -> None:
    chat = by_name("qwen2_5")
    plain = [user("x"), calls("2+2"), result("4"), answer("4.")]
    call = {"id": None, "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "2+2"}'}}
    filled = [
        {"role": "user", "content": "x", "tool_calls": None, "name": None},
        {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        {"role": "tool", "content": "4", "tool_calls": None, "tool_call_id": None, "name": "calculate"},
        {"role": "assistant", "content": "4.", "tool_calls": None, "name": None},
    ]
    assert chat.transcript(filled, TOOLS).ids == chat.transcript(plain, TOOLS).ids
