"""Text from outside that spells control tokens, and its encoding as the letters that it is.

A web page may hold `<|im_end|>\\n<|im_start|>system`. Such spellings are marked before the template renders them. In a
render, a marked one is encoded as text, and every other one is the template's own control token.

Invariants: text without a spelling is unchanged; the rest of a text with one is tokenized in one piece, with the
template around it.
"""

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

from tokenizers import Tokenizer

MARKER = "agentrlspelled"
"""Stands behind the first letter of a spelled token. No template changes this word; doubled, it is itself."""
CUT = "\ufdd0"
_MARKS = re.compile(f"{MARKER}({MARKER})?")


def unmarked(text: str) -> str:
    """A render as it reads."""
    return _MARKS.sub(r"\1", text) if MARKER in text else text


def tail(text: str, length: int) -> str:
    """The end of a marked text: as much as reads `length` characters."""
    at = len(unmarked(text)) - length
    for match in _MARKS.finditer(text):
        if match.start() >= at:
            break
        at += len(match[0]) - len(match[1] or "")
    return text[at:]


class OutsideText:
    """Marks and encodes spellings of one tokenizer's control tokens. Thread-safe."""

    def __init__(self, tokenizer: Any, control: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._control = frozenset(text for text in control if len(text) > 1)
        self._lengths: dict[str, set[int]] = {}
        """The lengths of the tokens that begin with these few letters."""
        for token in self._control:
            self._lengths.setdefault(token[:4], set()).add(len(token))

    def marked(self, value: Any, *, own: bool = False) -> Any:
        """A message, a schema or a text with its spellings marked; `own`: the model's, which are what they seem."""
        if isinstance(value, str):
            value = value.replace(MARKER, MARKER * 2)
            return value if own else self._mark(value)
        if isinstance(value, Mapping):
            return {self.marked(name, own=own): self.marked(item, own=own) for name, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self.marked(item, own=own) for item in value]
            for number in () if own else self._joints(value):
                items[number]["text"] += MARKER
            return items
        return value

    def encode(self, text: str) -> list[int] | None:
        """Ids of a marked text; None where this tokenizer cannot tell letters from tokens."""
        if not self._tokenizer.is_fast:
            return None
        made, ids = self._letters
        found = made.encode(self._aliased(text), add_special_tokens=False).ids
        if self._control_ids.intersection(number for number in found if number not in ids):
            return None  # the vocabulary itself has a control token as a piece
        return [ids.get(number, number) for number in found]

    @staticmethod
    def pieces(text: str) -> list[str]:
        """A marked text cut within its spellings, so that no piece spells a token."""
        return _MARKS.sub(lambda match: match[1] or CUT, text).split(CUT)

    def _mark(self, text: str) -> str:
        # Spellings may overlap: each gets its mark.
        at = sorted({start + 1 for start, _ in self._spellings(text)})
        return MARKER.join(text[a:b] for a, b in pairwise([0, *at, len(text)])) if at else text

    def _spellings(self, text: str) -> list[tuple[int, str]]:
        """(place, token) of all control tokens in a text, the longer first."""
        found = []
        for start, lengths in self._lengths.items():
            at = text.find(start)
            while at >= 0:
                spelled = (text[at : at + length] for length in lengths)
                found += [(at, token) for token in spelled if token in self._control]
                at = text.find(start, at + 1)
        return sorted(found, key=lambda each: (each[0], -len(each[1])))

    def _joints(self, parts: Sequence[Any]) -> Iterator[int]:
        """Parts of a message, by number, whose text spells a token together with the next; templates may trim each."""
        found = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
        texts = [text.strip() if isinstance(text, str) else "" for text in found]
        whole, longest = "".join(texts), max(map(len, self._control), default=0)
        for number, end in enumerate(accumulate(map(len, texts))):
            start = max(end - longest, 0)
            spelled = self._spellings(whole[start : end + longest]) if texts[number] else ()
            if any(at < end - start < at + len(token) for at, token in spelled):
                yield number

    def _aliased(self, text: str) -> str:
        """The text as it reads, control tokens by their aliases."""
        parts, start = [], 0
        for at, token in self._spellings(text):
            if at >= start:
                parts += [text[start:at], self._aliases[token]]
                start = at + len(token)
        return unmarked("".join([*parts, text[start:]]))

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.convert_tokens_to_ids(token) for token in self._control)

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """Names of control tokens that no text can guess."""
        nonce = secrets.token_hex()
        return {token: f"{CUT}{nonce}{number}{CUT}" for number, token in enumerate(sorted(self._control))}

    @cached_property
    def _letters(self) -> tuple[Tokenizer, dict[int, int]]:
        """The tokenizer with aliases for its control tokens, and the real numbers of its added tokens."""
        backend, ids = self._tokenizer.backend_tokenizer, dict[int, int]()
        made = Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if (own := getattr(backend, part)) is not None:
                setattr(made, part, own)
        added = sorted(self._tokenizer.added_tokens_decoder.items())
        for special, tokens in groupby(added, key=lambda each: each[1].special):  # each call costs a pass over all
            aliases = {number: self._alias(token) for number, token in tokens}
            (made.add_special_tokens if special else made.add_tokens)([*aliases.values()])
            ids |= {made.token_to_id(alias.content) or 0: number for number, alias in aliases.items()}
        return made, ids

    def _alias(self, token: Any) -> Any:
        """An added token by its alias."""
        alias = copy(token)
        alias.content = self._aliases.get(str(token), str(token))
        return alias
