"""The text of ids by a table of bytes equals the tokenizer's own."""

from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from agentrl.chat.byte_level import BYTES, MAX_CACHED_PIECE, ByteTable, decoder, without_special

WORDS = {character: i for i, character in enumerate(sorted(BYTES))} | {"\u0120so": 256, "\u00e2\u0124\u00ac": 257}
"""A word of each byte, " so" and the euro sign."""


def tokenizer(decoding: Any = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(WORDS, []))
    backend.decoder = decoding or decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.add_tokens([AddedToken("<|end|>", special=True), AddedToken("a b\u20ac", special=False)])
    return made


def own(made: PreTrainedTokenizerFast, ids: list[int], *, skip: bool = False) -> str:
    return str(made.backend_tokenizer.decode(ids, skip_special_tokens=skip))


def test_any_ids_have_the_tokenizers_text() -> None:
    made, rng = tokenizer(), Random(0)
    decode, plain = decoder(made, lambda ids: own(made, list(ids))), without_special(made)
    assert [f.__self__.__class__ for f in (decode, plain)] == [ByteTable, ByteTable]  # type: ignore[attr-defined]
    end = made.convert_tokens_to_ids("<|end|>")
    for n in [0, 1, 2, 3, 4] * 200 + [MAX_CACHED_PIECE + 1]:
        ids = [rng.randrange(len(made) + 3) for _ in range(n)] + [end] * rng.randrange(3)
        for _ in range(2):  # the second time it is remembered
            assert decode(ids) == own(made, ids)
            assert plain(ids) == own(made, ids, skip=True)


def test_a_token_that_is_added_later_is_decoded() -> None:
    made = tokenizer()
    assert without_special(made)([len(made)]) == ""
    made.add_tokens(["later"])
    assert without_special(made)([len(made) - 1]) == "later"


@pytest.mark.parametrize("odd", ["another kind", "another text"])
def test_a_tokenizer_whose_text_differs_decodes_by_itself(odd: str) -> None:
    made = tokenizer(decoders.Fuse() if odd == "another kind" else None)

    def by_itself(ids: Any) -> str:
        return own(made, list(ids)) + "!"

    assert decoder(made, by_itself) is by_itself
