"""Turn by turn, as a rollout writes it, against the tokenization of the finished conversation in one go.

The model's part is played by the template's own text for each turn; everything else comes from `Chat`. Prefixes
of one-shot renders, not the code under test, say where a turn begins.
"""

import pytest

from agentrl.chat import Chat
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Ledger
from tests.chat.conversations import Message, user
from tests.chat.pairs import CASES, Pair, case_id, chat_for, conversation

pytestmark = pytest.mark.integration


def one_shot(chat: Chat, messages: list[Message], tools: list[dict] | None) -> str:
    return chat.template.render(messages, tools)


def sampled_text(chat: Chat, pair: Pair, messages: list[Message], at: int, tools: list[dict] | None) -> str:
    """What a model that writes exactly as the template would sample as message `at`, stop token included."""
    before = chat.template.render(messages[:at], tools, generation=True)
    with_turn = chat.template.render(messages[: at + 1], tools)
    if not with_turn.startswith(before):
        # This turn rewrites history (gpt-oss): alone with a user, it has none to rewrite.
        before = chat.template.render([user("x")], generation=True)
        with_turn = chat.template.render([user("x"), messages[at]])
    if not with_turn.startswith(before):
        # DeepSeek: the prompt opens a think block, the finished turn has none.
        thought, written = (
            messages[at].get("reasoning_content", ""),
            with_turn.removeprefix(before[: -len("<think>\n")]),
        )
        return f"{thought}\n</think>\n\n{written}" if messages[at - 1]["role"] == "user" else written
    written = with_turn.removeprefix(before)
    if not pair.stop:
        observed = messages[at + 1]["role"] if at + 1 < len(messages) else "user"
        return written + {"user": "<|user|>", "tool": "<|observation|>"}[observed]
    stops = [stop for stop in (pair.stop, "<|call|>") if stop in written]
    return written[: written.rindex(stops[0]) + len(stops[0])]


def rollout(chat: Chat, pair: Pair, messages: list[Message], tools: list[dict] | None) -> Ledger:
    """The ledger as an agent loop writes it."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    ledger = Ledger()
    ledger.append_prompt(chat.prompt(messages[: turns[0]], tools))
    for turn, at in enumerate(turns):
        ids = chat.template.encode(sampled_text(chat, pair, messages, at, tools))
        assert ids[-1] in chat.stop_token_ids
        ledger.append_model(ids, [-0.5] * len(ids), turn=turn, version=3)
        observed = messages[at + 1 : turns[turn + 1] if turn + 1 < len(turns) else at + 1]
        if observed:
            history = messages[: at + 1]
            segments = chat.observation(observed, closed=True, tools=tools, last=ids[-1], history=history)
            for source, segment in segments:
                ledger.append_observation(segment, source, turn=turn)
    ledger.check()
    return ledger


def assert_supervised_training_sees_the_same(ledger: Ledger, transcript: Ledger) -> None:
    transcript.check()
    assert transcript.ids == ledger.ids
    assert transcript.mask == ledger.mask
    assert transcript.sources == ledger.sources
    assert transcript.turns == ledger.turns
    assert set(transcript.logprobs) == {0.0}


@pytest.mark.parametrize(("pair", "name"), CASES, ids=case_id)
def test_ledger_equals_one_shot_or_the_check_says_who_rewrote_history(pair: Pair, name: str) -> None:
    chat, messages, tools = chat_for(pair), conversation(name), pair.tools(name)
    if name in pair.refused:
        with pytest.raises(UserError, match=r"model\.chat_template"):
            chat.transcript(messages, tools)
        return
    ledger = rollout(chat, pair, messages, tools)
    assert_supervised_training_sees_the_same(ledger, chat.transcript(messages, tools))
    mismatch = chat.check_trajectory(messages, ledger.ids, tools)
    if name in pair.rewritten:
        assert mismatch is not None
        assert (mismatch.message, mismatch.rewritten_by) == pair.rewritten[name]
        return
    assert mismatch is None, str(mismatch)
    text = one_shot(chat, messages, tools)
    stop_beyond_text = 0 if pair.stop else 1
    if name in pair.other_tokens:
        assert text.startswith(chat.decode(ledger.ids))
        assert chat.template.encode(text)[: len(ledger)] != ledger.ids
        return
    expected = chat.template.encode(text)
    length = len(ledger) - stop_beyond_text
    assert ledger.ids[:length] == expected[:length]
    assert chat.decode(expected[length:]).strip() in ("", chat.tokenizer.eos_token)
