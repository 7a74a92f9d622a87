"""A Llama of about four million parameters, made from scratch with a tokenizer trained on the given files.

It knows nothing: `agentrl sft` teaches it a format, `agentrl train` the skill. Small enough that a CPU does both in
minutes, which makes it the model of end-to-end tests.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from agentrl.core.errors import UserError
from agentrl.tasks.models.store import make_once, read_template
from agentrl.tasks.models.tokenizer import read_texts, train_tokenizer

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
