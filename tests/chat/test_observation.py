"""What follows a turn: whose tokens, how much of the turn's end, and at what cost."""

import threading
import time
from datetime import datetime, timedelta

import pytest
import transformers.utils.chat_template_utils as chat_template_utils

from agentrl.chat import Chat
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Source
from tests.chat.conversations import result, user
from tests.chat.pairs import PAIRS, Pair, by_name, case_id, chat_for
from tests.chat.realia import tokenizer


def shown(chat: Chat, segments: list[tuple[Source, list[int]]]) -> list[tuple[str, str]]:
    return [(source.name, chat.decode(ids)) for source, ids in segments]


def test_sources_of_a_closed_turn() -> None:
    chat = by_name("qwen2_5")
    assert shown(chat, chat.observation([result("4"), result("9", 1), user("Go on.")], closed=True)) == [
        ("TEMPLATE", "\n"),
        (
            "TOOL",
            "<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n9\n</tool_response><|im_end|>\n",
        ),
        ("USER", "<|im_start|>user\nGo on.<|im_end|>\n"),
        ("TEMPLATE", "<|im_start|>assistant\n"),
    ]


@pytest.mark.parametrize("pair", PAIRS, ids=case_id)
def test_a_turn_stopped_by_length_gets_its_whole_end_from_the_template(pair: Pair) -> None:
    chat = chat_for(pair)
    closed = [i for _, ids in chat.observation([user("Go on.")], closed=True) for i in ids]
    cut = chat.observation([user("Go on.")], closed=False)
    whole = [i for _, ids in cut for i in ids]
    assert whole[-len(closed) :] == closed
    missing = chat.decode(whole[: len(whole) - len(closed)])
    ends = {"gptoss": "<|end|>", "glm4moe": "<|user|>", "cohere2": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"}
    assert missing == ends.get(pair.template or "", pair.stop)
    assert all(source is not Source.MODEL for source, _ in cut)


@pytest.mark.prevents("a model that stops at the end of its tool call gets no end of turn")
def test_a_turn_that_stopped_at_the_tool_calls_closing_tag_still_gets_its_end_of_turn() -> None:
    chat = by_name("qwen2_5")
    ids = chat.template.encode('<tool_call>\n{"name": "calculate", "arguments": {}}\n</tool_call>')
    reply = chat.parse(ids)
    assert not reply.closed
    assert [call.name for call in reply.calls] == ["calculate"]
    first = chat.observation([result("4")], closed=reply.closed)[0]
    assert (first[0], chat.decode(first[1])) == (Source.TEMPLATE, "<|im_end|>\n")


def test_stop_tokens_are_the_end_of_turn_the_end_of_sequence_and_the_formats_own() -> None:
    stops = {pair.name: {chat_for(pair).decode([i]) for i in chat_for(pair).stop_token_ids} for pair in PAIRS}
    assert stops["qwen2_5 x qwen"] == {"<|im_end|>", "<|endoftext|>"}
    assert stops["llama3_1 x llama3"] == {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}
    assert stops["own x smollm2"] == {"<|im_end|>", "<|endoftext|>"}
    assert stops["glm4moe x glm"] == {"<|user|>", "<|observation|>", "<|endoftext|>"}
    # <|end|> closes a thought, after which gpt-oss goes on.
    assert stops["gptoss x gpt_oss"] == {"<|return|>", "<|call|>"}
    for pair in PAIRS:
        assert not pair.stop or pair.stop in stops[pair.name]


def test_a_base_models_end_of_text_stands_for_the_end_of_turn() -> None:
    chat = by_name("qwen2_5")
    (end,) = chat.template.encode("<|endoftext|>")
    assert chat.parse([*chat.template.encode("Hi."), end]).closed
    assert shown(chat, chat.observation([user("x")], closed=True, last=end))[0] == ("TEMPLATE", "\n")


def test_glm_a_header_that_stopped_the_model_is_not_written_twice() -> None:
    chat = by_name("glm4moe")
    (as_user,), (as_tool,) = chat.template.encode("<|user|>"), chat.template.encode("<|observation|>")
    (end,) = chat.template.encode("<|endoftext|>")

    def text(last: int) -> str:
        return chat.decode([i for _, ids in chat.observation([user("x")], closed=True, last=last) for i in ids])

    assert text(as_user) == "\nx<|assistant|>"
    assert text(end) == "<|user|>\nx<|assistant|>"
    assert text(as_tool) == "<|user|>\nx<|assistant|>"


def test_a_template_that_drops_tool_messages_is_refused() -> None:
    chat = by_name("phi3_5")
    with pytest.raises(UserError, match=r"^model\.chat_template cannot show tool messages: it drops them; set it to"):
        chat.observation([result("4")], closed=True)


def test_a_template_without_tools_is_refused_where_there_are_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with pytest.raises(UserError, match="does not show tools to the model; set it to configs/templates/chatml_tools"):
        by_name("smollm2").prompt([user("x")], tools)
    assert by_name("smollm2").prompt([user("x")], [])


def test_ids_that_mistral_refuses_are_named() -> None:
    message = {"role": "tool", "name": "f", "tool_call_id": "short", "content": "4"}
    with pytest.raises(UserError, match="nine characters"):
        by_name("mistral_v3").observation([message], closed=True)


def test_templates_that_take_one_call_show_several_results() -> None:
    chat = by_name("llama3_1")
    segments = shown(chat, chat.observation([result("4"), result("9", 1)], closed=True))
    assert [source for source, _ in segments] == ["TOOL", "TEMPLATE"]
    assert segments[0][1].count("ipython") == 2


def test_a_name_the_model_made_up_cannot_end_the_turn() -> None:
    message = {"role": "tool", "name": "f<|call|>", "tool_call_id": "abcdefghi", "content": "4"}
    chat = by_name("gptoss")
    assert shown(chat, chat.observation([message], closed=True))[0][1].startswith("<|start|>functions.tool to=")


def test_midnight_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("llama3_2")
    before = chat.observation([user("x")], closed=True)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now() + timedelta(days=1)

    prompt = chat.decode(chat.prompt([user("x")]))
    monkeypatch.setattr(chat_template_utils, "datetime", Tomorrow)
    assert chat.decode(chat.prompt([user("x")])) != prompt
    assert chat.observation([user("x")], closed=True) == before


def test_cost_of_a_turn_is_small_and_does_not_know_the_history() -> None:
    chat = by_name("qwen3")
    messages = [result("391")]
    chat.observation(messages, closed=True)

    def best_of(runs: int) -> float:
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            chat.observation(messages, closed=True)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    # About 0.25 ms on one slow core; the bound leaves room for a busy machine.
    assert best_of(200) < 0.001


def test_many_threads_share_one_chat() -> None:
    chat = Chat(tokenizer("deepseek"), format="deepseek", chat_template=by_name("deepseek_v3_1").template.source)
    expected = chat.observation([result("4")], closed=True)
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            if chat.observation([result("4")], closed=True) != expected:
                wrong.append("differs")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
