"""Text of token ids, by a table where the tokenizer allows it.

The ids of byte-level tokenizers (Qwen, Llama 3, SmolLM, GPT) stand for bytes: their text is that of the joined bytes. A
table of these bytes decodes several times as fast as the tokenizer, which looks up words and joins them. A tokenizer of
another kind, or one whose own text differs for any id of a probe, decodes by itself.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Decode = Callable[[Sequence[int]], str]

PROBE_IDS = 2_000
"""Ids of the vocabulary, about, whose text is compared."""
TRICKY_TEXT = "It 's \u00e9 , \u20ac 1 .\n\n do n't \U0001f600 \u4e16\u754c \u200d  x ! ? "
"""Text that some tokenizers clean up, and characters of several bytes."""
CACHED_PIECES, MAX_CACHED_PIECE = 2048, 8 << 10
"""Pieces whose text is remembered, and the most ids of one: an answer is decoded for the conversation, for its reward
and for the check against the template."""


def decoder(tokenizer: Any, by_itself: Decode, *, skip_special: bool = False) -> Decode:
    """A function with the results of `by_itself`, which decodes with `tokenizer`, and faster where that is possible."""
    if not getattr(tokenizer, "is_fast", False) or type(tokenizer.backend_tokenizer.decoder).__name__ != "ByteLevel":
        return by_itself
    table = _table(tokenizer.backend_tokenizer, tokenizer.backend_tokenizer.get_vocab_size())
    decode = table.plain if skip_special else table.decode
    size = table.backend.get_vocab_size()
    read = table.backend.encode(TRICKY_TEXT, add_special_tokens=False).ids
    probe = [*range(0, size, max(1, size // PROBE_IDS)), *table.backend.get_added_tokens_decoder(), *read]
    return decode if decode(probe) == by_itself(probe) else by_itself


def without_special(tokenizer: Any) -> Decode:
    """A function that decodes as `tokenizer.decode(ids, skip_special_tokens=True)`."""
    return decoder(tokenizer, lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)), skip_special=True)


class ByteTable:
    """Bytes of each id; entries are made when they are first asked for. Thread-safe: an entry is always the same."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self._known: list[bytes | None] = [None] * backend.get_vocab_size()
        self._text_of = lru_cache(CACHED_PIECES)(lambda piece: self._decode(array("I", piece)))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included; bytes that are no text become U+FFFD."""
        end = len(ids)
        while end and ids[end - 1] in self.special:  # an answer is asked for with its end and without
            end -= 1
        text = self._text(ids[:end])
        return text + self._decode(ids[end:]) if end < len(ids) else text

    def plain(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self._text(ids if self.special.isdisjoint(ids) else [i for i in ids if i not in self.special])

    def _text(self, ids: Sequence[int]) -> str:
        return self._decode(ids) if len(ids) > MAX_CACHED_PIECE else self._text_of(array("I", ids).tobytes())

    def _decode(self, ids: Sequence[int]) -> str:
        try:
            found = b"".join(map(self._known.__getitem__, ids))  # type: ignore[arg-type]
        except (TypeError, IndexError):  # an id that is new here
            for i in set(ids):
                self._known += [None] * (i + 1 - len(self._known))
                self._known[i] = self._bytes(i)
            found = b"".join(map(self._known.__getitem__, ids))  # type: ignore[arg-type]
        return found.decode("utf-8", errors="replace")

    def _bytes(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id) or ""
        # An added token may hold characters that stand for no byte: it stands for itself.
        spelled = all(character in BYTES for character in token)
        return bytes(BYTES[character] for character in token) if spelled else token.encode()


@lru_cache(maxsize=4)
def _table(backend: Any, size: int) -> ByteTable:
    """The table of a tokenizer with a vocabulary of this size: tokens may be added to it."""
    return ByteTable(backend)


def _byte_characters() -> dict[str, int]:
    """Characters of a byte-level vocabulary and their bytes: visible ones are themselves, others come after U+00FF."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


BYTES = _byte_characters()
