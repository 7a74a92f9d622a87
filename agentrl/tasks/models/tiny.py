"""A Llama of about four million parameters, made from scratch with a tokenizer trained on the given files.

It knows nothing: `agentrl sft` teaches it a format, `agentrl train` the skill. Small enough that a CPU does both in
minutes, which makes it the model of end-to-end tests.

Invariants of its byte-level BPE tokenizer: any text round-trips; each digit is a token, so that numbers can be copied
digit by digit; a line break is always a single token, so that the end of a chat template never merges with the model's
first token.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agentrl.core.errors import UserError
from agentrl.data.files import read_records
from agentrl.tasks.models.store import make_once, read_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single ids as well, but ordinary text: decoding keeps them."""

SPECIAL = re.compile("|".join(map(re.escape, (END, START, PAD, *MARKS))))

# Words with the space before them, single digits, line breaks, and runs of all else (JSON's `", "` is one piece) up to
# the next word's space.
PIECES = r" ?\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+?(?= ?\p{L}|\p{N}|\n|$)"

HEAD = 64
"""Size of an attention head."""


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the model; the defaults give 4.2 million parameters."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 1024
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048

    @classmethod
    def of(cls, hidden: int, layers: int, *, vocab_size: int) -> Self:
        """A shape of other size and equal proportions. Raises UserError."""
        if hidden < HEAD or hidden % HEAD:
            raise UserError(f"--hidden {hidden}: give a multiple of {HEAD}")
        if layers < 1:
            raise UserError(f"--layers {layers}: give 1 or more")
        heads = hidden // HEAD
        groups = heads // 2 if heads % 2 == 0 else heads
        return cls(vocab_size, hidden, 4 * hidden, layers, heads, groups)


def prepare(
    out: Path,
    data: Sequence[Path],
    *,
    shape: TinyShape | None = None,
    seed: int = 0,
    template: Path | None = None,
) -> bool:
    """Save an untrained model and its tokenizer to `out` unless they are there; says whether it wrote.

    The tokenizer is learnt from `data` (text or jsonl files); `template` is its chat template, agentrl's compact
    ChatML by default. Raises UserError on unreadable files or when `out` holds something else.
    """
    shape = shape or TinyShape()
    chat_template = read_template(template)
    texts = [text for file in data for text in read_texts(file, chat_template)]
    if not texts:
        raise UserError(f"no text to train a tokenizer on in {', '.join(map(str, data))}")
    digest = hashlib.sha256("\0".join([chat_template, *texts]).encode()).hexdigest()
    recipe = {"model": "tiny", "seed": seed, "texts and template": digest, **asdict(shape)}
    return make_once(out, recipe, lambda folder: _create(folder, texts, shape, seed, chat_template))


def _create(folder: Path, texts: list[str], shape: TinyShape, seed: int, chat_template: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer(texts, shape.vocab_size, chat_template)
    config = LlamaConfig(
        **asdict(shape) | {"vocab_size": len(tokenizer)},  # fewer where the texts hold fewer merges
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_texts(file: Path, chat_template: str) -> list[str]:
    """The texts in a file, as a model will meet them, without special tokens.

    A .jsonl row with `messages` is rendered by the template, tools and all; of other rows each string counts, and of
    any other file each line. Raises UserError when the file cannot be read.
    """
    if not file.is_file():
        raise UserError(f"tokenizer data {file} does not exist")
    if file.suffix == ".jsonl":
        lines = [text for row in read_records(file) for text in _row_texts(row, chat_template)]
    else:
        lines = file.read_text(encoding="utf-8").split("\n")
    return [piece for line in lines for piece in SPECIAL.split(line) if piece]


def _row_texts(row: Any, chat_template: str) -> Iterator[str]:
    if isinstance(row, str):
        yield row
        return
    if isinstance(row, dict) and "messages" in row:
        from transformers.utils.chat_template_utils import render_jinja_template

        yield render_jinja_template([row["messages"]], tools=row.get("tools"), chat_template=chat_template)[0][0]
        return
    for item in row.values() if isinstance(row, dict) else row if isinstance(row, list) else ():
        yield from _row_texts(item, chat_template)


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
