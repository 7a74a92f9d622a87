"""Pieces of a token stream under tokenizers that spread characters and drop spaces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl.tracking.dumps.text import TokenTexts, continuation


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
    texts = TokenTexts(decode).pieces(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == decode(ids)


def test_a_spread_character_appears_whole_with_its_last_token(encode, decode):
    ids = encode("a🙂b")
    texts = TokenTexts(decode).pieces(ids)
    assert len(ids) > 3
    assert [text for text in texts if text] == ["a", "🙂", "b"]


def test_a_character_cut_off_by_the_length_limit_is_shown_as_such(encode, decode):
    ids = encode("a🙂")[:-1]
    assert TokenTexts(decode).pieces(ids)[-1] == "\ufffd"


def test_spaces_survive_tokenizers_that_drop_the_first(metaspace):
    ids = metaspace.encode("the answer is three").ids
    assert "".join(TokenTexts(metaspace.decode).pieces(ids)) == "the answer is three"
    assert metaspace.decode(ids[-1:]) != " three"
    assert continuation(ids[:-1], ids[-1:], metaspace.decode).startswith(" ")
    assert TokenTexts(metaspace.decode).pieces(ids[-1:], ids[:-1])[0].startswith(" ")


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), cut=st.integers(0, 40))
def test_looked_up_texts_join_to_the_whole_too(tokenizer, decode, text, cut):
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = TokenTexts(decode)
    for _ in range(2):  # decoded, then looked up
        found = texts.pieces(ids[cut:], ids[:cut])
        assert len(found) == len(ids[cut:])
        assert "".join(found) == continuation(ids[:cut], ids[cut:], decode)


def test_a_token_is_decoded_once(encode, decode):
    calls = []

    def counted(ids):
        calls.append(ids)
        return decode(ids)

    ids, texts = encode("one two three four five six seven"), TokenTexts(counted)
    texts.pieces(ids)
    first = len(calls)
    calls.clear()
    assert texts.pieces(ids, ids[-1:]) == texts.pieces(ids, ids[-1:])
    assert len(calls) < first


def test_looked_up_where_a_space_depends_on_what_stands_before(metaspace):
    ids = metaspace.encode("the answer is the three").ids
    texts = TokenTexts(metaspace.decode)
    assert "".join(texts.pieces(ids)) == metaspace.decode(ids)
    assert "".join(texts.pieces(ids[2:], ids[:2])) == continuation(ids[:2], ids[2:], metaspace.decode)


def test_bytes_one_by_one():
    def decode(ids):
        return bytes(ids).decode("utf-8", "replace")

    ids = list("é🙂x".encode())
    assert TokenTexts(decode).pieces(ids) == ["", "é", "", "", "", "🙂", "x"]
