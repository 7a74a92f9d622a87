"""Supervised fine-tuning: the policy's own pieces (packing, chunked log-probs, optimizer) with another loss.

Invariants: only what the assistant says is trained on, its end-of-turn included; the loss of a step is the mean over
its assistant tokens, however they are cut into forward passes; a run that goes on from a checkpoint takes the steps
that an unbroken one would have taken.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import token_weights
from agentrl.chat import Chat, Ledger
from agentrl.config import to_yaml
from agentrl.config.schema.sft import SftConfig, SftTrainer
from agentrl.data import Loader
from agentrl.media import Processor
from agentrl.tracking import Loggers, open_loggers
from agentrl.training import checkpoints
from agentrl.training.batch import Batch
from agentrl.training.conversations import Conversations, read_conversations
from agentrl.training.cpu import tune_cpu
from agentrl.training.device import device_for
from agentrl.training.export import save_pretrained
from agentrl.training.logprobs import TokenLogprobs
from agentrl.training.model import load_model, load_tokenizer
from agentrl.training.optimizer import Optimizer
from agentrl.training.packing import pack_ledgers
from agentrl.training.passes import Cut
from agentrl.training.trainee import Steps, Trainee

__all__ = ["SftResult", "read_conversations", "sft"]

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called after each step with (step, all steps, metrics)."""

LOGGED = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "tokens": "train/tokens",
    "val_loss": "val/loss",
}
"""Names of a step's metrics in logs, which are verl's."""

# The loss of one step is noisy; the final one is a mean over this many.
FINAL_STEPS = 10


@dataclass
class SftResult:
    """What came of a run."""

    path: Path
    steps: int
    final_loss: float
    """Mean over the last steps of this process, in nats a token; NaN where a checkpoint had them all."""
    conversations: int
    too_long: int
    val_loss: float | None
    """Of the last validation."""


def sft(config: SftConfig, on_step: OnStep) -> SftResult:
    """Train, write the model to `trainer.output_dir`, and say what came of it. Raises UserError."""
    run = Run(config)
    run.resume()
    with closing(_loggers(config, run.step)) as loggers:
        while run.step < run.total:
            metrics = run.next_step()
            loggers.log(run.step, {LOGGED[name]: value for name, value in metrics.items()})
            on_step(run.step, run.total, metrics)
    return run.finish()


def _loggers(config: SftConfig, step: int) -> Loggers:
    """Where steps are written besides the terminal, which `on_step` serves."""
    trainer = config.trainer
    names = [name for name in trainer.logger if name != "console"]
    if not names:
        return Loggers([])
    return open_loggers(
        names,
        Path(trainer.output_dir),
        resume_step=step,
        config_yaml=to_yaml(config),
        project=trainer.project_name,
        experiment=trainer.experiment_name,
    )


@dataclass
class Loss:
    """What a step is told of itself."""

    value: float = 0.0
    grad_norm: float = 0.0

    def mini_batch(self, grad_norm: float | None) -> None:
        """An optimizer step was taken."""
        self.grad_norm = grad_norm or 0.0


class Student(Trainee):
    """Learns finished conversations."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        """`how`: as a Trainee has it."""
        super().__init__(module, **how)
        self.score = TokenLogprobs(module)

    def weigh(self, mini: Batch) -> Tensor:
        """Every assistant token weighs the same."""
        return token_weights(mini.mask, mini.cu_seqlens, "token-mean")

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """Cross-entropy."""
        assert micro.weights is not None
        logprobs, _ = self.score(micro)
        loss = -(logprobs * micro.weights).sum()
        report.value += float(loss.detach())
        return loss

    @torch.no_grad()
    def measured(self, batch: Batch) -> float:
        """The mean loss of a batch in nats a token, without learning from it."""
        batch.weights, report = self.weigh(batch), Loss()
        for rows in self.cut.passes(batch):
            self.loss(batch.select(rows), report)
        return report.value


class Run:
    """A supervised run: what it trains, where it stands."""

    def __init__(self, config: SftConfig) -> None:
        self.config = config
        data, trainer = config.data, config.trainer
        self.device = device_for(trainer.device)
        if self.device.type == "cpu":
            tune_cpu()
        self.tokenizer = load_tokenizer(config.model)
        blind = Processor(missing="`agentrl sft` trains on text alone; leave conversations with images out")
        kwargs = data.apply_chat_template_kwargs
        chat = Chat(self.tokenizer, check="disable", template_kwargs=kwargs, processor=blind)
        self.conversations = read_conversations(data, chat, limit=data.train_max_samples)
        self.held_out = self._held_out(chat)
        rows: Any = self.conversations.ledgers
        size = min(data.train_batch_size, len(rows))
        self.loader = Loader(rows, size, shuffle=data.shuffle, seed=data.seed, drop_last=False)
        self.total = trainer.total_training_steps or trainer.total_epochs * self.loader.steps_per_epoch
        self.module = load_model(config.model, device=self.device, seed=trainer.seed)
        self.student = self._student(size)
        self.step = 0
        self.losses: list[float] = []
        self.val_loss: float | None = None

    def next_step(self) -> dict[str, float]:
        """One optimizer step, and what is due after it: loss (nats a token), grad_norm, lr, tokens, val_loss."""
        ledgers: Any = self.loader.next_batch()
        batch = self._packed(ledgers)
        lr, report, trainer = self.student.optimizer.lr, Loss(), self.config.trainer
        self.student.learn(batch, report)  # type: ignore[arg-type]  # as much of a Report as it needs
        self.step += 1
        self.losses.append(report.value)
        metrics = {
            "loss": report.value,
            "grad_norm": report.grad_norm,
            "lr": lr,
            "tokens": float(batch.num_tokens),
        }
        if self.held_out and self._due(trainer.test_freq):
            metrics["val_loss"] = self.val_loss = self.validate()
        if trainer.save_freq > 0 and self._due(trainer.save_freq):
            self._save()
        return metrics

    def validate(self) -> float:
        """Mean loss over all assistant tokens of the held-out conversations, in nats."""
        size = self.config.data.train_batch_size
        batches = [self._packed(self.held_out[i : i + size]) for i in range(0, len(self.held_out), size)]
        tokens = [int(batch.mask.sum()) for batch in batches]
        losses = [self.student.measured(batch) for batch in batches]
        return sum(n * loss for n, loss in zip(tokens, losses, strict=True)) / sum(tokens)

    def resume(self) -> None:
        """Go on from where `trainer.resume_mode` says. Raises UserError."""
        trainer = self.config.trainer
        path = checkpoints.source(_folder(trainer), trainer.resume_mode, trainer.resume_from_path)
        if path is None:
            return
        self.step, state = checkpoints.load(path)
        self.student.load_state_dict(state["model"])
        self.loader.load_state_dict(state["rows"])

    def finish(self) -> SftResult:
        """Write the model."""
        trainer, last = self.config.trainer, self.losses[-FINAL_STEPS:]
        if self.held_out and self.val_loss is None:
            self.val_loss = self.validate()
        path = Path(trainer.output_dir)
        save_pretrained(self.module, self.tokenizer, path, merge=trainer.merge_lora)
        loss = sum(last) / len(last) if last else float("nan")
        found = self.conversations
        return SftResult(path, self.total, loss, len(found.ledgers), found.too_long, self.val_loss)

    def _due(self, every: int) -> bool:
        return self.step == self.total or (every > 0 and self.step % every == 0)

    def _save(self) -> None:
        trainer, folder = self.config.trainer, _folder(self.config.trainer)
        state = {"model": self.student.state_dict(), "rows": self.loader.state_dict()}
        checkpoints.save(folder, self.step, state, lambda out: save_pretrained(self.module, self.tokenizer, out))
        checkpoints.prune(folder, trainer.max_ckpt_to_keep)

    def _held_out(self, chat: Chat) -> Sequence[Ledger]:
        data = self.config.data
        if data.val_files is None:
            return []
        files, limit = data.val_files, data.val_max_samples
        found: Conversations = read_conversations(data, chat, files, limit=limit, what="data.val_files")
        return found.ledgers

    def _packed(self, ledgers: Sequence[Ledger]) -> Batch:
        return pack_ledgers(ledgers).to(self.device)

    def _student(self, size: int) -> Student:
        trainer = self.config.trainer
        optimizer = Optimizer(self.module, self.config.optim, grad_clip=trainer.grad_clip, total_steps=self.total)
        steps = Steps(prompts=size, epochs=1, shuffle=False, seed=0)
        cut = Cut(max_tokens=trainer.max_token_len_per_gpu)
        return Student(self.module, optimizer=optimizer, cut=cut, steps=steps, device=self.device)


def _folder(trainer: SftTrainer) -> Path:
    return Path(trainer.output_dir) / "checkpoints"
