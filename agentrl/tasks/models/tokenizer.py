"""A byte-level BPE tokenizer of our own, for the tiny model.

Invariants: any text round-trips; each digit is a token, so that numbers can be copied digit by digit; a line break is
always a single token, so that what a chat template ends with never merges with what the model begins with.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single ids as well, but ordinary text: decoding keeps them."""

SPECIAL = re.compile("|".join(map(re.escape, (END, START, PAD, *MARKS))))

# Words with the space before them, single digits, line breaks, and runs of all else (JSON's `", "` is one piece) up to
# the next word's space.
PIECES = r" ?\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+?(?= ?\p{L}|\p{N}|\n|$)"


def read_texts(file: Path, chat_template: str) -> list[str]:
    """The texts in a file, as a model will meet them, without special tokens.

    A .jsonl row with `messages` is rendered by the template, tools and all; of other rows each string counts, and of
    any other file each line. Raises UserError when the file cannot be read.
    """
    if not file.is_file():
        raise UserError(f"tokenizer data {file} does not exist")
    lines = file.read_text(encoding="utf-8").split("\n")
    if file.suffix == ".jsonl":
        rows = [_parse(line, file, number) for number, line in enumerate(lines, 1) if line.strip()]
        lines = [text for row in rows for text in _row_texts(row, chat_template)]
    return [piece for line in lines for piece in SPECIAL.split(line) if piece]


def _parse(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{number} is not JSON: {error}") from None


def _row_texts(row: Any, chat_template: str) -> Iterator[str]:
    if isinstance(row, str):
        yield row
        return
    if isinstance(row, dict) and "messages" in row:
        yield _render(row, chat_template)
        return
    for item in row.values() if isinstance(row, dict) else row if isinstance(row, list) else ():
        yield from _row_texts(item, chat_template)


def _render(row: dict[str, Any], chat_template: str) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([row["messages"]], tools=row.get("tools"), chat_template=chat_template)
    return rendered[0]


def train_tokenizer(texts: Sequence[str], vocab_size: int, chat_template: str) -> "PreTrainedTokenizerFast":
    """Learn merges from `texts` up to `vocab_size` ids in all, special ones included (256 bytes are always there)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )
