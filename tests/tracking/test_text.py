"""Pieces of a token stream under tokenizers that spread characters and drop spaces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl.tracking.text import continuation, pieces


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """SentencePiece's way: a space belongs to the word after it, and the first one of a text is dropped."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(["the answer is three"] * 10, trainers.BpeTrainer(special_tokens=["<unk>"]))
    return tokenizer


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_pieces_join_to_the_whole(tokenizer, decode, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = pieces(ids, decode)
    assert len(texts) == len(ids)
    assert "".join(texts) == decode(ids)


def test_a_spread_character_appears_whole_with_its_last_token(encode, decode):
    ids = encode("a🙂b")
    texts = pieces(ids, decode)
    assert len(ids) > 3
    assert [text for text in texts if text] == ["a", "🙂", "b"]


def test_a_character_cut_off_by_the_length_limit_is_shown_as_such(encode, decode):
    ids = encode("a🙂")[:-1]
    assert pieces(ids, decode)[-1] == "\ufffd"


def test_spaces_survive_tokenizers_that_drop_the_first(metaspace):
    ids = metaspace.encode("the answer is three").ids
    assert "".join(pieces(ids, metaspace.decode)) == "the answer is three"
    assert metaspace.decode(ids[-1:]) != " three"
    assert continuation(ids[:-1], ids[-1:], metaspace.decode).startswith(" ")
    assert pieces(ids[-1:], metaspace.decode, before=ids[:-1])[0].startswith(" ")
