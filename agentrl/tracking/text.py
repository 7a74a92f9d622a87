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


CONTEXT = 8
"""Tokens before a part that may have a say in its text: more than any character has."""


class TokenTexts:
    """`pieces` for many parts: a token that has a text of its own is decoded once, then looked up.

    That is most tokens of most tokenizers. Bytes of a character that several tokens share are decoded together; and
    where the pieces do not join to the text of the whole, all of it goes the slow way.
    """

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._texts: dict[int, str] = {}

    def pieces(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
        """One string a token; joined they are the text that `ids` add to the stream after `before`."""
        whole = continuation(before[-CONTEXT:], ids, self.decode)
        texts = [self._texts.get(token, "") for token in ids]
        if not (all(texts) and "".join(texts) == whole):  # else all have been seen, and none shares a character
            texts = self._looked_up(ids, before)
        if "".join(texts) != whole:
            texts = pieces(ids, self.decode, before=before)
        # Where even that does not join, `before` ended within a character: the first token stands for all.
        return texts if "".join(texts) == whole else [whole, *[""] * (len(ids) - 1)]

    def _looked_up(self, ids: Sequence[int], before: Sequence[int]) -> list[str]:
        texts: list[str] = []
        pending: list[int] = []
        context = before[-1:]
        for token in ids:
            text = "" if pending else self._own(token, context)
            if not text:
                pending.append(token)
                text = continuation(context, pending, self.decode)
                if text.endswith(UNFINISHED):
                    texts.append("")
                    continue
            texts.append(text)
            context, pending = [token], []
        return texts

    def _own(self, token: int, context: Sequence[int]) -> str:
        """The token's text, or "" where it is none on its own."""
        if token not in self._texts:
            text = continuation(context, [token], self.decode)
            self._texts[token] = "" if text.endswith(UNFINISHED) else text
        return self._texts[token]
