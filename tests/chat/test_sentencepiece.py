"""Vocabularies of SentencePiece, which put a space in front of a text: three kinds of Llama 2's and Mistral's."""

import io
from functools import cache

import pytest
import sentencepiece
from tokenizers import normalizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from agentrl.chat import Chat
from tests.chat.conversations import TOOLS, answer, calls, result, user
from tests.chat.realia import HERE, template

INST = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '[INST] ' + m.content + ' [/INST]' -}}
{%- else -%}{{- ' ' + m.content + eos_token -}}{%- endif -%}
{%- endfor -%}
"""
PLAIN_TEXT = """\
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- 'USER: ' + m.content + ' ASSISTANT:' -}}
{%- else -%}{{- ' ' + m.content + eos_token -}}{%- endif -%}
{%- endfor -%}
"""
TEMPLATES = {
    "inst": INST,
    "chatml": template("chatml_tools"),
    "mistral": template("mistral_v3"),
    "vicuna": PLAIN_TEXT,
}
CONTROL = ["[INST]", "[/INST]", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"]
CONTROL += ["[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
KINDS = ["first", "always", "prepended"]


@cache
def vocabulary() -> tuple[dict[str, int], list]:
    lines = (HERE.parents[1] / "docs" / "chat.md").read_text(encoding="utf-8").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=600, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = {trained.id_to_piece(i): i for i in range(len(trained))}
    return pieces, generate_merges(pieces, {piece: trained.get_score(i) for piece, i in pieces.items()})


@cache
def llama(kind: str) -> PreTrainedTokenizerFast:
    pieces, merges = vocabulary()
    made = LlamaTokenizer(vocab=dict(pieces), merges=list(merges), legacy=kind == "always")
    if kind == "prepended":
        backend = made.backend_tokenizer
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.add_special_tokens({"additional_special_tokens": CONTROL})
    return made


@cache
def chat(kind: str, name: str, check: str = "strict") -> Chat:
    format = "mistral" if name == "mistral" else "hermes"
    return Chat(llama(kind), chat_template=TEMPLATES[name], check=check, format=format)


TALK = [user("Who are you?"), answer("The model."), user("And who else?"), answer("Nobody else.")]


@pytest.mark.prevents("SentencePiece adds spaces at the start of text fragments")
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_transcript_equals_one_shot_and_the_strict_check_is_silent(kind: str, name: str) -> None:
    it = chat(kind, name)
    ledger = it.transcript(TALK)
    ledger.check()
    assert it.check_trajectory(TALK, ledger.ids) is None
    whole = it.template.encode(it.template.render(TALK))
    assert ledger.ids == whole[: len(ledger.ids)]


@pytest.mark.parametrize("name", ["chatml", "mistral"])
@pytest.mark.parametrize("kind", KINDS)
def test_tools(kind: str, name: str) -> None:
    it = chat(kind, name)
    messages = [user("2+2?"), calls("2+2"), result("4"), answer("It is 4.")]
    ledger = it.transcript(messages, TOOLS)
    assert it.check_trajectory(messages, ledger.ids, TOOLS) is None
    assert ledger.ids == it.template.encode(it.template.render(messages, TOOLS))[: len(ledger.ids)]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_model_samples_without_a_second_space_reads_the_same(kind: str, name: str) -> None:
    """The engine samples "▁The" after a control token; encoding " The" there gives two spaces in the old kind."""
    it = chat(kind, name)
    the = llama(kind).convert_tokens_to_ids(["▁T", "h", "e"])
    ids = [*it.prompt(TALK[:1]), *the, *it.template.encode(it._segmenter.base.turn_end)]
    if name != "chatml":  # there a word of the header comes before, and the space is one
        assert it.check_trajectory([TALK[0], answer("The")], ids) is None
    assert it.check_trajectory([TALK[0], answer("Tho")], ids) is not None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tampered_ledger_is_seen(kind: str, name: str) -> None:
    it = chat(kind, name)
    ids = it.transcript(TALK).ids
    letter = llama(kind).convert_tokens_to_ids("e")
    for at in range(1, len(ids) - 1, 3):
        if ids[at] != letter:
            assert it.check_trajectory(TALK, [*ids[:at], letter, *ids[at + 1 :]]) is not None
            assert it.check_trajectory(TALK, [*ids[:at], letter, *ids[at:]]) is not None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_conversation_rendered_again_only_appends(kind: str, name: str) -> None:
    it = chat(kind, name)
    ids = it.transcript(TALK[:2]).ids
    step = it.continuation(ids, TALK[:3])
    assert isinstance(step, list)
    assert [*ids, *(i for _, piece in step for i in piece)] == it.prompt(TALK[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_cut_by_length_gets_no_space_of_the_tokenizers(kind: str) -> None:
    it = chat(kind, "chatml")
    pieces = it.observation([user("x")], closed=False)
    assert it.tokenizer.convert_ids_to_tokens(pieces[0][1])[0] == "<|im_end|>"


def test_where_decoding_gives_the_text_back_nothing_is_overlooked() -> None:
    assert chat("first", "chatml").template.comparable("<|im_end|> x") == "<|im_end|> x"
    assert chat("prepended", "chatml").template.comparable("<|im_end|>  x") == "<|im_end|>x"
