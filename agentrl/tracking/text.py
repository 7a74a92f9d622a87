"""Text of parts of a token stream.

Decoding tokens one by one is wrong: a character may be spread over several tokens, and some tokenizers drop the
space in front of the first. So a part is decoded together with what comes before it, and the text of that is cut off.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

UNFINISHED = "\ufffd"
"""What a decoder writes for bytes that are not a whole character (yet)."""


def continuation(before: Sequence[int], ids: Sequence[int], decode: Decode) -> str:
    """Text that `ids` add to the stream after `before`."""
    prefix = decode(before) if before else ""
    whole = decode([*before, *ids])
    return whole[len(prefix) :] if whole.startswith(prefix) else decode(ids)


def pieces(ids: Sequence[int], decode: Decode, *, before: Sequence[int] = ()) -> list[str]:
    """One string a token; joined they are the text of `ids`.

    A token that only begins a character has "" and the token that completes it has the character.
    """
    texts: list[str] = []
    context, pending = list(before), []
    for token in ids:
        pending.append(token)
        text = continuation(context, pending, decode)
        if text.endswith(UNFINISHED):
            texts.append("")
            continue
        texts.append(text)
        context, pending = pending, []
    if pending:
        texts[-1] = continuation(context, pending, decode)
    return texts
