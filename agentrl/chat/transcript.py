"""Finds the tokens that a model would sample for a given assistant message."""

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.chat.fixed_base import MARKED_USER, FixedBase
from agentrl.chat.template import showing
from agentrl.chat.thinking import BLOCKS, closed_at_end, left_open
from agentrl.core.prefixes import common_length
from agentrl.trajectory.message import Message, Tools, text_of


class ShownTurn(NamedTuple):
    """A finished turn as the template shows it, from the end of what came before it on."""

    text: str
    opening: str
    """The generation prompt there."""


def shown_turn(
    base: FixedBase, history: Sequence[Message], message: Message, tools: Tools, *, looks_back: bool
) -> ShownTurn:
    """The turn as the template shows it; with `looks_back`, after its true history. Raises UserError."""
    with showing("an assistant message"):
        if looks_back:
            render = base.template.render
            text, opening = render([*history, message], tools), render(history, tools, generation=True)
            if text.startswith(opening):
                return ShownTurn(text[len(opening) :], "")
        return ShownTurn(base.render([MARKED_USER, message]), base.opening)


def turn_ids(
    base: FixedBase, shown: ShownTurn, message: Message, observed: Sequence[Message], lead: str, *, verbatim: bool
) -> list[int]:
    """Ids of the model's text and of the token that stops it.

    `observed`: the messages up to the next turn. `lead`: the end of the text before the turn. `verbatim`: keep the text
    as written, where the template would only trim it or put an empty think block before it.
    """
    text, stop = base.split_end(shown.text)
    if not stop and observed:
        # The turn ends with the next role's header (GLM).
        suffix = base.after(observed)
        stop = base.stop_at_start(suffix.text[suffix.end :])
    own = _own_text(base, message, ShownTurn(text, shown.opening), lead)
    if verbatim:
        own = _verbatim(own, text_of(message), lead)
    ids = base.template.encode_within(own, shown.opening)
    return ids + base.template.encode(stop or base.turn_end or "")


def _verbatim(own: str, written: str, lead: str) -> str:
    """The written text, if `own` is only that text, trimmed or after an empty think block."""
    core = written.strip()
    if not core or left_open(lead):
        return own
    before, found, after = own.partition(core)
    for tag in (*BLOCKS, *BLOCKS.values()):
        before = before.replace(tag, "")
    return own if not found or before.strip() or after.strip() else written


def _own_text(base: FixedBase, message: Message, turn: ShownTurn, lead: str) -> str:
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
