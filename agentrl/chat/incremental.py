"""Encodes and decodes a growing conversation part by part, so that each turn costs only its new text.

Invariants, tested over all templates:
- ids and text equal those of encoding and decoding the whole: a part begins with a control token, at which every
  tokenizer starts again; where that is not certain, the whole is encoded and decoded;
- a cache has the parts of the last rendering of one conversation, and nothing of older ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from agentrl.chat.template import Template


@dataclass
class RenderCache:
    """The last rendering of one conversation; its owner keeps it from turn to turn."""

    parts: dict[str, tuple[list[int], str]] = field(default_factory=dict)
    """Text of a part -> its ids, and these as text."""
    text: str = ""
    """The first `count` ids of the ledger as text."""
    count: int = 0


class IncrementalCodec:
    """Splits texts and ids of one template before the tokens that end turns. Stateless."""

    def __init__(self, template: Template, ends: Sequence[str]) -> None:
        self.template = template
        added = template.tokenizer.added_tokens_decoder if template.tokenizer.is_fast else {}
        texts = [str(token) for token in added.values()]
        ids = {end: number for end in dict.fromkeys(ends) for number, token in added.items() if str(token) == end}
        self._ends = {end: number for end, number in ids.items() if _splits(added[number], texts)}
        self._end_ids = frozenset(self._ends.values())
        self._additive = self._decodes_by_parts()

    def encode(self, text: str, memory: RenderCache) -> list[int]:
        """`Template.encode`; only parts that are not in `memory` are encoded."""
        parts = list(self._cut(text))
        memory.parts = {part: memory.parts.get(part) or self._read(part) for part in parts}
        return list(chain.from_iterable(memory.parts[part][0] for part in parts))

    def decode(self, ids: Sequence[int], memory: RenderCache) -> str:
        """`Template.decode` of a ledger that has only grown since the last call with this `memory`."""
        if not self._additive:
            return self.template.decode(ids)
        new = list(ids[memory.count :])
        at = next((i for i in range(len(new) - 1, 0, -1) if new[i] in self._end_ids), 0)
        memory.text += self.template.decode(new[:at]) if at else ""
        memory.count += at
        return memory.text + self.template.decode(new[at:])

    def restart(self, text: str, memory: RenderCache) -> None:
        """Start a new ledger with the ids of `text`, the last text that was encoded with this `memory`."""
        known = [memory.parts[part] for part in list(self._cut(text))[:-1]] if self._additive else []
        memory.text, memory.count = "".join(shown for _, shown in known), sum(len(ids) for ids, _ in known)

    def _read(self, part: str) -> tuple[list[int], str]:
        ids = self.template.encode(part)
        return ids, self.template.decode(ids) if self._additive else ""

    def _cut(self, text: str) -> Iterator[str]:
        """The text's parts; each but the first begins with a token that ends turns."""
        parts = [text]
        for end in self._ends:
            parts = [segment for part in parts for segment in _cut_before(part, end)]
        return filter(None, parts)

    def _decodes_by_parts(self) -> bool:
        if not self._ends:
            return False
        decode = self.template.decode
        word = self.template.encode_within("x y")
        parts = [word, *([end, *word] for end in self._end_ids)]
        return decode(list(chain.from_iterable(parts))) == "".join(map(decode, parts))


def _splits(token: Any, texts: Iterable[str]) -> bool:
    """Whether a tokenizer starts again at this added token, wherever it stands. `texts`: those of all added tokens."""
    plain = not (token.lstrip or token.single_word or token.normalized)
    return plain and sum(str(token) in text for text in texts) == 1


def _cut_before(text: str, end: str) -> Iterator[str]:
    first, *rest = text.split(end)
    yield first
    yield from (end + part for part in rest)
