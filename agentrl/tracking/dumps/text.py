"""Text of parts of a token stream.

Decoding tokens one by one is wrong: a character may be spread over several tokens, and some tokenizers drop the
space in front of the first. So a part is decoded together with what comes before it, and the text of that is cut off.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

UNFINISHED = "\ufffd"
"""A decoder writes this for bytes that are not a whole character (yet)."""
CONTEXT = 8
"""Tokens before a part that may have a say in its text: more than any character has."""


def continuation(before: Sequence[int], ids: Sequence[int], decode: Decode) -> str:
    """Text that `ids` add to the stream after `before`."""
    prefix = decode(before) if before else ""
    whole = decode([*before, *ids])
    return whole[len(prefix) :] if whole.startswith(prefix) else decode(ids)


class TokenTexts:
    """Texts of single tokens. A token with a whole text is decoded once, then looked up.

    That is most tokens of most tokenizers. Bytes of a character that several tokens share are decoded together; and
    where the pieces do not join to the text of the whole, each is decoded where it stands.
    """

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._known: dict[int, str] = {}

    def pieces(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
        """One string a token; joined they are the text that `ids` add to the stream after `before`.

        A token that only begins a character has "" and the token that completes it has the character.
        """
        context = before[-CONTEXT:]
        whole = continuation(context, ids, self.decode)
        texts = [self._known.get(token, "") for token in ids]
        if not (all(texts) and "".join(texts) == whole):  # else all are known, and none shares a character
            texts = self._split(ids, context, self._known)
        if "".join(texts) != whole:
            texts = self._split(ids, context, None)
        # Where even that does not join, `before` ended within a character: the first token stands for all.
        return texts if "".join(texts) == whole else [whole, *[""] * (len(ids) - 1)]

    def _split(self, ids: Sequence[int], context: Sequence[int], known: dict[int, str] | None) -> list[str]:
        """One string a token, from those `known` where it is one: new ones are added."""
        texts: list[str] = []
        pending: list[int] = []
        for token in ids:
            pending.append(token)
            text = known.get(token) if known and len(pending) == 1 else None
            if text is None:
                text = continuation(context, pending, self.decode)
                if text.endswith(UNFINISHED):
                    texts.append("")
                    continue
                if known is not None and len(pending) == 1:
                    known[token] = text
            texts.append(text)
            context, pending = pending, []
        if pending:
            texts[-1] = continuation(context, pending, self.decode)
        return texts
