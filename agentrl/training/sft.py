"""Supervised fine-tuning: the policy's own pieces (packing, chunked log-probs, optimizer) with another loss.

Invariants: only what the assistant says is trained on, its end-of-turn included; the loss of a step is the mean over
its assistant tokens, however they are cut into forward passes; a conversation that is too long is left out whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.algorithms import token_weights
from agentrl.chat import Chat, Ledger
from agentrl.config.schema.sft import SftConfig, SftData
from agentrl.data import Loader
from agentrl.data.files import paths, read_records
from agentrl.data.plain import plain
from agentrl.errors import UserError
from agentrl.training.batch import Batch
from agentrl.training.cpu import tune_cpu
from agentrl.training.device import device_for
from agentrl.training.logprobs import TokenLogprobs
from agentrl.training.model import load_model, load_tokenizer, save_pretrained
from agentrl.training.optimizer import Optimizer
from agentrl.training.packing import pack_ledgers
from agentrl.training.splitting import micro_batches

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called after each step with (step, all steps, metrics)."""

# The loss of one step is noisy; the final one is a mean over this many.
FINAL_STEPS = 10


@dataclass
class Conversations:
    """Training samples, and how many were left out."""

    ledgers: list[Ledger]
    too_long: int


@dataclass
class SftResult:
    """What came of a run."""

    path: Path
    steps: int
    final_loss: float
    """Mean over the last steps, in nats a token."""
    conversations: int
    too_long: int


def sft(config: SftConfig, on_step: OnStep) -> SftResult:
    """Train, write the model to `trainer.output_dir`, and say what came of it. Raises UserError."""
    data, trainer = config.data, config.trainer
    device = device_for(trainer.device)
    if device.type == "cpu":
        tune_cpu()
    tokenizer = load_tokenizer(config.model)
    conversations = read_conversations(data, Chat(tokenizer, check="disable"))
    module = load_model(config.model, device=device, seed=trainer.seed)
    rows: Any = conversations.ledgers
    size = min(data.train_batch_size, len(rows))
    loader = Loader(rows, size, shuffle=data.shuffle, seed=data.seed, drop_last=False)
    total = trainer.total_training_steps or trainer.total_epochs * loader.steps_per_epoch
    optimizer = Optimizer(module, config.optim, grad_clip=trainer.grad_clip, total_steps=total)
    run = Sft(TokenLogprobs(module), optimizer, device=device, max_tokens=trainer.max_token_len_per_gpu)
    losses = []
    for step in range(1, total + 1):
        ledgers: Any = loader.next_batch()
        metrics = run.step(ledgers)
        losses.append(metrics["loss"])
        on_step(step, total, metrics)
    path = Path(trainer.output_dir)
    save_pretrained(module, tokenizer, path, merge=trainer.merge_lora)
    last = losses[-FINAL_STEPS:]
    return SftResult(path, total, sum(last) / len(last), len(rows), conversations.too_long)


class Sft:
    """The steps of a supervised run."""

    def __init__(self, score: TokenLogprobs, optimizer: Optimizer, *, device: torch.device, max_tokens: int) -> None:
        self.score = score
        self.optimizer = optimizer
        self.device = device
        self.max_tokens = max_tokens

    def step(self, ledgers: Sequence[Ledger]) -> dict[str, float]:
        """One optimizer step: loss (nats a token), grad_norm, lr, tokens."""
        batch = pack_ledgers(ledgers).to(self.device)
        batch.weights = token_weights(batch.mask, batch.cu_seqlens, "token-mean")
        self.score.module.train()
        loss = sum(self._backward(micro) for micro in self._passes(batch))
        self.score.module.eval()
        lr = self.optimizer.lr
        grad_norm = self.optimizer.step()
        self.optimizer.advance()
        return {"loss": float(loss), "grad_norm": grad_norm, "lr": lr, "tokens": float(batch.num_tokens)}

    def _backward(self, micro: Batch) -> torch.Tensor:
        assert micro.weights is not None
        logprobs, _ = self.score(micro)
        loss = -(logprobs * micro.weights).sum()
        loss.backward()
        return loss.detach()

    def _passes(self, batch: Batch) -> Iterator[Batch]:
        cut = micro_batches(batch.lengths, max_tokens=self.max_tokens, max_sequences=None)
        return (batch.select(rows) for rows in cut)


def read_conversations(data: SftData, chat: Chat) -> Conversations:
    """Rows of `data.train_files` as ledgers. Raises UserError naming the row that is none, or when none fits."""
    ledgers, too_long = [], 0
    for file in paths(data.train_files, "data.train_files"):
        for number, record in enumerate(read_records(file), start=1):
            ledger = _ledger(record, data, chat, place=f"{file}:{number}")
            if len(ledger) > data.max_length:
                too_long += 1
            else:
                ledgers.append(ledger)
    if not ledgers:
        raise UserError(
            f"data.train_files: none of {too_long} conversations fits into data.max_length={data.max_length}; raise it"
        )
    return Conversations(ledgers, too_long)


def _ledger(record: dict[str, Any], data: SftData, chat: Chat, *, place: str) -> Ledger:
    messages = plain(record.get(data.messages_key))
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{place} has no messages under {data.messages_key!r}; set data.messages_key")
    tools = plain(record.get(data.tools_key)) or None
    try:
        return chat.transcript(messages, tools)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # someone else's data
        raise UserError(f"{place}: the messages are not OpenAI-style: {type(error).__name__} {error}") from error
