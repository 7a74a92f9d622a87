"""Encoding and decoding by parts equals encoding and decoding the whole, over all templates."""

import random

import pytest

from agentrl.chat import Split
from agentrl.chat.incremental import RenderCache
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.pairs import PAIRS, Pair, by_name, case_id, chat_for

pytestmark = pytest.mark.integration

WORDS = [
    "x",
    " y",
    "\n",
    "\n\n",
    "  ",
    "é",
    "🙂",
    "e\u0301",
    "<|im_end|>",
    "<|user|>",
    "</s>",
    "<",
    "|>",
    "<think>",
    "1 2",
]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randint(0, 12)))


def a_conversation(rng: random.Random, pair: Pair) -> list[dict]:
    """Messages and results with spaces, control tokens and half of something anywhere."""
    messages = []
    for i in range(4):
        messages += [user(text(rng) + "?"), answer(text(rng) + ".", reasoning_content=text(rng) + ".")]
        if pair.tools("tools") and "tools" not in pair.refused:
            messages[-1:] = [calls(text(rng), start=i), result(text(rng), i), answer("so")]
    return messages


@pytest.mark.prevents("each turn renders the whole history again")
@pytest.mark.parametrize("pair", PAIRS, ids=case_id)
def test_parts_make_the_whole(pair: Pair) -> None:
    chat, rng = chat_for(pair), random.Random(0)
    messages, memory, read = a_conversation(rng, pair), RenderCache(), RenderCache()
    parts = chat._codec
    for end in range(1, len(messages) + 1):
        if messages[end - 1]["role"] == "assistant":
            continue
        try:
            whole = chat.template.render(messages[:end], pair.tools("tools"), generation=True)
        except Exception:
            continue
        ids = chat.template.encode(whole)
        assert parts.encode(whole, memory) == ids
        for cut in sorted(rng.sample(range(1, len(ids)), 3)):
            assert parts.decode(ids[:cut], read) == chat.template.decode(ids[:cut])
        read = RenderCache()
        parts.encode(whole, read)
        parts.restart(whole, read)
        assert parts.decode([*ids, *ids], read) == chat.template.decode([*ids, *ids])
        read = RenderCache()


@pytest.mark.parametrize("pair", PAIRS, ids=case_id)
def test_a_memory_changes_no_step(pair: Pair) -> None:
    """A conversation of several turns, with what the engine samples played by odd tokens."""
    chat, rng, memory = chat_for(pair), random.Random(1), RenderCache()
    tools = None if "tools" in pair.refused else pair.tools("tools")
    messages = [user("x")]
    ids = chat.prompt(messages, tools)
    for _ in range(5):
        sampled = [*chat.template.encode(text(rng)), chat.stop_token_ids[0]]
        reply = chat.parse(sampled, lead=ids)
        ids = [*ids, *sampled]
        messages = [*messages, {"role": "assistant", "content": reply.message["content"]}, user(text(rng) + "!")]
        step = chat.continuation(ids, messages, tools, memory)
        assert step == chat.continuation(ids, messages, tools)
        ids = step.ids if isinstance(step, Split) else [*ids, *(i for _, segment in step for i in segment)]


def test_only_what_is_new_is_encoded_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, memory, work = by_name("qwen3"), RenderCache(), []
    encode, decode = chat.template.encode, chat.template.decode
    monkeypatch.setattr(chat.template, "encode", lambda text: work.append(len(text)) or encode(text))
    monkeypatch.setattr(chat.template, "decode", lambda ids: work.append(len(ids)) or decode(ids))
    messages = [user("x" * 50)]
    ids, per_turn, splits = chat.prompt(messages), [], 0
    for i in range(40):
        messages = [*messages, answer(f"{i % 10}.", reasoning_content="Hm. " * 20), user("y" * 50)]
        turn = encode(f"<think>\n{'Hm. ' * 20}\n</think>\n\n{i % 10}.<|im_end|>")
        work.clear()
        step = chat.continuation([*ids, *turn], messages, None, memory)
        per_turn.append(sum(work))
        assert isinstance(step, Split)
        assert step.ids == encode(chat.template.render(messages, generation=True))
        ids, splits = step.ids, splits + 1
    assert splits == 40
    assert per_turn[39] < 1.2 * per_turn[4]


def test_older_renders_are_forgotten() -> None:
    chat, memory = by_name("qwen2_5"), RenderCache()
    messages = [user("x"), calls("1"), result("1")]
    ids = chat.transcript(messages, TOOLS).ids
    assert isinstance(chat.continuation(ids, messages, TOOLS, memory), list)
    chat._codec.encode("<|im_start|>user\nx<|im_end|>", memory)
    chat._codec.encode("other<|im_end|>", memory)
    assert set(memory.parts) == {"other", "<|im_end|>"}
