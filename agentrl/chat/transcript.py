"""Writes a finished conversation as a training sample.

Invariant: between the assistant turns, the ledger has the tokens of `Chat.prompt` and `Chat.observation`, so supervised
and reinforcement training get the same tokens for the same conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from agentrl.chat.fixed_base import MARKED_USER, FixedBase
from agentrl.chat.template import LEAD, TemplateRefusal, Tools
from agentrl.chat.thinking import BLOCKS, closed_at_end, left_open
from agentrl.core.errors import UserError
from agentrl.core.prefixes import common_length
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.medium import media_of
from agentrl.trajectory.message import Message, text_of

if TYPE_CHECKING:
    from agentrl.chat.chat import Chat


class Turn(NamedTuple):
    """A finished turn as the template shows it, from the end of what came before it on."""

    text: str
    opening: str
    """The generation prompt there."""


def transcript(
    chat: Chat, messages: Sequence[Message], tools: Tools, given: int = 0, *, verbatim: bool = False
) -> Ledger:
    """See `Chat.transcript`."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= given]
    if not turns or turns[0] == 0:
        raise UserError("messages: a transcript needs a prompt and then an assistant message")
    ledger = Ledger()
    ledger.append_prompt(chat.prompt(messages[: turns[0]], tools), media_of(messages[: turns[0]]))
    for turn, (at, following) in enumerate(zip(turns, [*turns[1:], len(messages)], strict=True)):
        observed = messages[at + 1 : following]
        lead = chat.decode(ledger.ids[-LEAD:])
        base = chat.base_for(messages[:at], tools)
        shown = _shown(chat, base, messages[:at], messages[at], tools)
        ids = _turn_ids(base, shown, messages[at], observed, lead, verbatim)
        if messages[at].get("loss_mask", 1):
            ledger.append_model(ids, [0.0] * len(ids), turn=turn, version=0)
        else:  # an assistant message that is not trained on
            ledger.append_observation(ids, Source.USER, turn=turn)
        if following == len(messages):
            break
        if not observed:
            raise UserError(f"messages: {at} and {following} are both from the assistant; put a message between them")
        history = messages[: at + 1]
        for source, segment in chat.observation(observed, closed=True, tools=tools, last=ids[-1], history=history):
            ledger.append_observation(segment, source, turn=turn)
        ledger.media += media_of(observed)
    return ledger


def _turn_ids(
    base: FixedBase, shown: Turn, message: Message, observed: Sequence[Message], lead: str, verbatim: bool
) -> list[int]:
    """What the model is to sample: its text and the token that stops it."""
    text, stop = base.split_end(shown.text)
    if not stop and observed:
        # The turn ends with the next role's header (GLM).
        suffix = base.after(observed)
        stop = base.stop_at_start(suffix.text[suffix.end :])
    own = _own_text(base, message, Turn(text, shown.opening), lead)
    if verbatim:
        own = _verbatim(own, text_of(message), lead)
    ids = base.template.encode_within(own, shown.opening)
    return ids + base.template.encode(stop or base.turn_end or "")


def _verbatim(own: str, written: str, lead: str) -> str:
    """What was written, where `own` is no more than that, trimmed or after an empty think block."""
    core = written.strip()
    if not core or left_open(lead):
        return own
    before, found, after = own.partition(core)
    for tag in (*BLOCKS, *BLOCKS.values()):
        before = before.replace(tag, "")
    return own if not found or before.strip() or after.strip() else written


def _shown(chat: Chat, base: FixedBase, history: Sequence[Message], message: Message, tools: Tools) -> Turn:
    """The turn as the template shows it. Raises UserError."""
    try:
        if chat.looks_back:
            render = base.template.render
            text, opening = render([*history, message], tools), render(history, tools, generation=True)
            if text.startswith(opening):
                return Turn(text[len(opening) :], "")
        return Turn(base.render([MARKED_USER, message]), base.opening)
    except TemplateRefusal as error:
        raise UserError(f"model.chat_template cannot show an assistant message: {error}") from error


def _own_text(base: FixedBase, message: Message, turn: Turn, lead: str) -> str:
    """The part of a finished turn that comes after the generation prompt, with which `lead` ends."""
    if turn.text.startswith(turn.opening):
        return turn.text.removeprefix(turn.opening)
    # The prompt and the finished turn part somewhere: keep the whole tokens that they share.
    encode, decode = base.template.encode, base.template.decode
    opening = encode(turn.opening)
    written = turn.text[len(decode(opening[: common_length(encode(turn.text), opening)])) :]
    if opened := left_open(lead):
        return _thought_out(message, written, opened)
    if closed := closed_at_end(lead):
        # The prompt has closed the block already: a finished turn's own block is not for the model to write.
        _, tag, answer = written.partition(closed)
        return answer.lstrip("\n") if tag else written
    return written


def _thought_out(message: Message, written: str, opened: str) -> str:
    """A turn that begins inside a think block: the thinking, the end of the block, the answer."""
    closing, thinking, inside = BLOCKS[opened], _thinking(message, opened), written.lstrip()
    if inside.startswith(opened):
        return inside.removeprefix(opened).lstrip("\n")
    if inside.startswith(closing) or (thinking and inside.startswith(thinking.strip())):
        return written
    # The template opens a think block for the model, yet drops it from finished turns.
    return f"{thinking}\n{closing}\n\n{written}"


def _thinking(message: Message, opened: str) -> str:
    content, closing = text_of(message), BLOCKS[opened]
    inline = content.partition(closing)[0].removeprefix(opened) if closing in content else ""
    return str(message.get("reasoning_content") or inline).strip("\n")
