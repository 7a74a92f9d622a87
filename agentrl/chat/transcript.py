"""A finished conversation as a training sample, out of the pieces a rollout is made of.

Invariant: cut at the assistant turns, the ledger is what `Chat.prompt` and `Chat.observation` return, so that
supervised and reinforcement training see the same tokens for the same conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.chat.fixed_base import MARKED_USER, FixedBase
from agentrl.chat.ledger import Ledger
from agentrl.chat.message import Message
from agentrl.chat.template import MARK, TemplateRefusal, Tools
from agentrl.errors import UserError

if TYPE_CHECKING:
    from agentrl.chat.chat import Chat
from agentrl.prefixes import common_length


def transcript(chat: Chat, base: FixedBase, messages: Sequence[Message], tools: Tools) -> Ledger:
    """See `Chat.transcript`."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        raise UserError("messages: a transcript needs a prompt and then an assistant message")
    ledger = Ledger()
    ledger.append_prompt(chat.prompt(messages[: turns[0]], tools))
    for turn, (at, following) in enumerate(zip(turns, [*turns[1:], len(messages)], strict=True)):
        observed = messages[at + 1 : following]
        prompted = ledger.ids[-len(base.generation_ids) :] == base.generation_ids
        ids = _turn_ids(base, messages[at], observed, prompted)
        ledger.append_model(ids, [0.0] * len(ids), turn=turn, version=0)
        if following == len(messages):
            break
        if not observed:
            raise UserError(f"messages: {at} and {following} are both from the assistant; put a message between them")
        for source, piece in chat.observation(observed, closed=True, last=ids[-1]):
            ledger.append_observation(piece, source, turn=turn)
    return ledger


def _turn_ids(base: FixedBase, message: Message, observed: Sequence[Message], prompted: bool) -> list[int]:
    """What the model is to sample: its text and the token that stops it."""
    try:
        shown = base.template.render([MARKED_USER, message]).partition(MARK)[2]
    except TemplateRefusal as error:
        raise UserError(f"model.chat_template cannot show an assistant message: {error}") from error
    text, stop = base.split_end(shown)
    encode = base.template.encode
    if not stop and observed:
        # The turn ends with the next role's header (GLM).
        suffix = base.after(observed)
        stop = base.stop_at_start(suffix.text[suffix.end :])
    return encode(_own_text(base, message, text, prompted)) + encode(stop or base.turn_end or "")


def _own_text(base: FixedBase, message: Message, shown: str, prompted: bool) -> str:
    """The part of a finished turn that comes after the generation prompt."""
    if shown.startswith(base.opening):
        return shown.removeprefix(base.opening)
    # The prompt and the finished turn part somewhere: keep the whole tokens that they share.
    encode, decode = base.template.encode, base.template.decode
    opening = encode(base.opening)
    written = shown[len(decode(opening[: common_length(encode(shown), opening)])) :]
    if prompted and base.opens_thinking:
        # The template opens a think block for the model, yet drops it from finished turns.
        return f"{_thinking(message)}\n</think>\n\n{written}"
    return written


def _thinking(message: Message) -> str:
    content = message.get("content") or ""
    inline = content.partition("</think>")[0].removeprefix("<think>") if "</think>" in content else ""
    return str(message.get("reasoning_content") or inline).strip("\n")
