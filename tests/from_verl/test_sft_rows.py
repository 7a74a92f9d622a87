"""Rows of verl's supervised trainers, token by token: which are there, and which are trained on."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from agentrl.chat import Chat
from agentrl.config.schema.data import CustomClass
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError
from agentrl.training.sft.conversations import read_conversations
from tests.algorithms.verl_code import functions, needs_verl
from tests.chat import realia

QUESTION, ANSWER = "Janet has 2 hens and buys 3.\nHow many? ", " 2 + 3 = <<2+3=5>>5 hens.\n#### 5 "
GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": f"{QUESTION} Let's think step by step."}],
    "extra_info": {"split": "train", "index": 0, "question": QUESTION, "answer": ANSWER},
}
KEYS = {
    "prompt_key": "extra_info",
    "response_key": "extra_info",
    "prompt_dict_keys": ["question"],
    "response_dict_keys": ["answer"],
}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "2+3"},
    {"role": "assistant", "content": "It is 5."},
]


@pytest.fixture(params=[("qwen", "qwen2_5"), ("llama3", "llama3")], ids=lambda pair: pair[0])
def real(request, monkeypatch):
    family, template = request.param
    made = realia.tokenizer(family)
    monkeypatch.setattr(made, "chat_template", realia.template(template))
    return made


@pytest.fixture
def qwen3(monkeypatch):
    made = realia.tokenizer("qwen")
    monkeypatch.setattr(made, "chat_template", realia.template("qwen3"))
    return made


def read(tmp_path, tokenizer, rows, **settings):
    """The ledgers of rows in a parquet file."""
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    data = SftData(train_files=str(tmp_path / "rows.parquet"), **settings)
    return read_conversations(data, Chat(tokenizer, check="disable"))


@pytest.mark.prevents(
    "a supervised mask is shifted by one token: the first token of an answer or the end of the turn is not trained on"
)
def test_a_pair_in_a_mapping_is_read_as_verl_reads_it(tmp_path, real):
    """The question through the template, the answer as it stands with the end of the turn, which alone is trained on:
    the tokens of verl's SFTDataset (0.4 to 0.7.0), whose rows have one user message and `answer + eos_token`."""
    (ledger,) = read(tmp_path, real, [GSM8K], **KEYS).ledgers
    question = [{"role": "user", "content": QUESTION}]
    prompt = real.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    parts = [real(text, add_special_tokens=False)["input_ids"] for text in (prompt, ANSWER + real.eos_token)]
    assert ledger.ids == parts[0] + parts[1]
    assert ledger.mask == [0] * len(parts[0]) + [1] * len(parts[1])
    ledger.check()


@needs_verl
def test_a_conversation_is_read_as_verl_reads_it(tmp_path, real):
    """verl 0.9's MultiTurnSFTDataset. Where the template writes a line break behind the end of a turn, verl trains on
    it too: a rollout stops before it."""
    (ledger,) = read(tmp_path, real, [{"messages": TALK}]).ledgers
    ids, mask = theirs(real, TALK)
    broken = real("\n", add_special_tokens=False)["input_ids"]
    if ids[-1:] == broken:
        ids, mask = ids[:-1], mask[:-1]
    after_an_end = [i for i in range(1, len(ids)) if ids[i - 1] == real.eos_token_id and [ids[i]] == broken]
    assert ledger.ids == ids
    assert ledger.mask == [0 if i in after_an_end else trained for i, trained in enumerate(mask)]


def theirs(tokenizer, messages):
    """Token ids and loss mask of verl's own class."""
    types = dict.fromkeys(("PreTrainedTokenizerBase", "PreTrainedTokenizer", "ProcessorMixin", "DictConfig"), Any)
    names = ("apply_chat_template", "extract_system_prompt_and_generation")
    chat = functions("utils/tokenizer/chat_template.py", names, **types, normalize_token_ids=flat)
    file = "utils/dataset/multiturn_sft_dataset.py"
    cls = functions(file, ["MultiTurnSFTDataset"], **types, **vars(chat), Dataset=object).MultiTurnSFTDataset
    made = object.__new__(cls)
    vars(made).update(tokenizer=tokenizer, processor=None, apply_chat_template_kwargs={})
    made.system_prompt, made.generation_prompt = chat.extract_system_prompt_and_generation(tokenizer)
    found = [made._process_single_message(i, dict(message), messages)[:2] for i, message in enumerate(messages)]
    return [torch.cat(column).tolist() for column in zip(*found, strict=True)]


def flat(found):
    return list(found["input_ids"] if hasattr(found, "keys") else found)


def test_a_conversation_too_long(tmp_path, real):
    whole = read(tmp_path, real, [GSM8K], **KEYS).ledgers[0]
    size, limit = len(whole), len(whole) - 5
    prompt = whole.prompt_length

    def cut(**settings):
        return read(tmp_path, real, [GSM8K], **KEYS, max_length=limit, **settings).ledgers[0]

    left, right, middle = (cut(truncation=side) for side in ("left", "right", "middle"))
    assert (left.ids, left.mask) == (whole.ids[5:], whole.mask[5:])
    assert (right.ids, right.mask) == (whole.ids[:limit], whole.mask[:limit])
    assert middle.ids == whole.ids[: limit // 2] + whole.ids[size - (limit - limit // 2) :]
    for ledger in (left, right, middle):
        ledger.check()
    with pytest.raises(UserError, match=f"parquet:1: a conversation of {size} tokens is over data.max_length={limit}"):
        cut(truncation="error")
    with pytest.raises(UserError, match="none of 1 conversation fits"):
        cut()
    with pytest.raises(UserError, match="none of 1 conversation fits"):  # nothing is left to train on
        read(tmp_path, real, [GSM8K], **KEYS, max_length=prompt, truncation="right")
    tail = read(tmp_path, real, [GSM8K], **KEYS, max_length=4, truncation="left").ledgers[0]
    assert tail.mask == [0, 1, 1, 1]  # nothing predicts the first
    tail.check()


def test_each_row_says_whether_the_model_thinks(tmp_path, qwen3):
    talk = TALK[1:3]
    rows = [{"messages": talk, "enable_thinking": value} for value in (True, False, None)]
    closed = "<think>\n\n</think>\n\n"
    thinks, not_, unsaid = (
        qwen3.decode([i for i, trained in zip(ledger.ids, ledger.mask, strict=True) if trained])
        for ledger in read(tmp_path, qwen3, rows).ledgers
    )
    assert (thinks, not_, unsaid) == (f"{closed}Hello.<|im_end|>", "Hello.<|im_end|>", f"{closed}Hello.<|im_end|>")
    ledgers = read(tmp_path, qwen3, rows[2:], enable_thinking_default=False).ledgers
    assert qwen3.decode(ledgers[0].ids).endswith(f"assistant\n{closed}Hello.<|im_end|>")
    assert sum(ledgers[0].mask) == len(qwen3("Hello.<|im_end|>")["input_ids"])
    named = [{"messages": talk, "think": False}]
    assert read(tmp_path, qwen3, named, enable_thinking_key="think").ledgers[0].mask == ledgers[0].mask


def test_an_answer_to_a_model_that_thinks_stands_as_it_is(tmp_path, qwen3):
    rows = [{"question": "2+3", "answer": "5"}]
    ledger = read(tmp_path, qwen3, rows, prompt_key="question", response_key="answer").ledgers[0]
    assert qwen3.decode(ledger.ids).endswith("<|im_start|>assistant\n5<|im_end|>")


def test_messages_with_loss_mask_0_are_not_trained_on(tmp_path, qwen3):
    masked = [{**message, "loss_mask": int(i == 4)} for i, message in enumerate(TALK)]
    (ledger,) = read(tmp_path, qwen3, [{"messages": masked}]).ledgers
    (plain,) = read(tmp_path, qwen3, [{"messages": TALK}]).ledgers
    assert ledger.ids == plain.ids
    assert qwen3.decode([i for i, m in zip(ledger.ids, ledger.mask, strict=True) if m]).endswith("It is 5.<|im_end|>")
    assert 0 < sum(ledger.mask) < sum(plain.mask)
    ledger.check()
    for messages, complaint in (
        ([{**m, "loss_mask": 0} for m in TALK], "no assistant message is trained on"),
        ([{**m, "loss_mask": 1} for m in TALK], "a system message has loss_mask 1"),
    ):
        with pytest.raises(UserError, match=complaint):
            read(tmp_path, qwen3, [{"messages": messages}])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (KEYS | {"prompt_dict_keys": ["query"]}, "there is no 'query' in 'extra_info', which has split, index, quest"),
        (KEYS | {"response_dict_keys": None}, "'extra_info' holds no text; data.response_dict_keys leads on"),
        (KEYS | {"prompt_dict_keys": None}, "'extra_info' holds neither text nor messages"),
        (KEYS | {"prompt_key": "query"}, "has no messages under 'messages', nor 'query' and 'extra_info'"),
        ({"conversations": False}, "has no 'prompt' and 'response'; set data.prompt_key and data.response_key"),
        ({"conversations": True}, "has no messages under 'messages'; set data.messages_key"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, qwen3, settings, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        read(tmp_path, qwen3, [GSM8K], **settings)
    assert "rows.parquet:1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_which_of_two_columns_counts(tmp_path, qwen3):
    rows = [{"messages": TALK, "prompt": [{"content": "2+3"}], "response": "5", "extra_info": json.dumps({"a": "6"})}]
    pair = {"prompt_dict_keys": ["content"]}
    conversation, either = (read(tmp_path, qwen3, rows, conversations=c).ledgers[0] for c in (True, None))
    assert conversation.ids == either.ids
    ledger = read(tmp_path, qwen3, rows, conversations=False, **pair).ledgers[0]
    assert qwen3.decode(ledger.ids).endswith("user\n2+3<|im_end|>\n<|im_start|>assistant\n5<|im_end|>")
    text = {"response_key": "extra_info", "response_dict_keys": ["a"]}  # an object written as JSON text
    ledger = read(tmp_path, qwen3, rows, conversations=False, **pair, **text).ledgers[0]
    assert qwen3.decode(ledger.ids).endswith("assistant\n6<|im_end|>")


OWN = """
import torch

class Own(torch.utils.data.Dataset):
    def __init__(self, parquet_files, tokenizer, config, max_samples):
        self.ids = tokenizer("a b c d e")["input_ids"]
        assert len(parquet_files) == 1 and config.get("max_length") == config.max_length

    def __len__(self):
        return 2

    def __getitem__(self, i):
        ids = torch.tensor([*self.ids, 0, 0])
        mask = torch.tensor([1, 0, 1, 1, 0, 0, 0]) * (1 - i * ROW)
        return {"input_ids": ids, "attention_mask": (torch.arange(7) < 5).long(), "loss_mask": mask}
"""


def test_a_dataset_class_of_ones_own(tmp_path, qwen3):
    """verl's contract since 0.6: `loss_mask` is 1 on the tokens that are trained on; the first cannot be."""
    (tmp_path / "own.py").write_text(OWN.replace("ROW", "0"))
    own = {"custom_cls": CustomClass(path=str(tmp_path / "own.py"), name="Own")}
    first, second = read(tmp_path, qwen3, [GSM8K], **own).ledgers
    assert first.ids == second.ids == qwen3("a b c d e")["input_ids"]
    assert first.mask == [0, 0, 1, 1, 0]
    first.check()
    (tmp_path / "none.py").write_text(OWN.replace("ROW", "1"))
    own["custom_cls"].path = str(tmp_path / "none.py")
    with pytest.raises(UserError, match=r"data.custom_cls: Own\[1\] has no token to train on"):
        read(tmp_path, qwen3, [GSM8K], **own)
