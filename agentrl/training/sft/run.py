"""A supervised run: the policy's packing, log-probs and optimizer with a cross-entropy loss.

Invariants: only assistant tokens are trained on, the end of turn included; a step's loss is the mean over its assistant
tokens, for every split into micro-batches and every number of ranks; a resumed run takes the steps that an unbroken one
would have taken.
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from agentrl.chat import Chat
from agentrl.config.schema import Trainer
from agentrl.config.schema.sft import EACH_EPOCH, SftConfig, SftTrainer
from agentrl.core.numbers import limit_of
from agentrl.core.outputs import model_folder
from agentrl.data import Loader
from agentrl.tracking.loggers import CONFIG_FILE
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.batches.packing import pack_ledgers
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.changes import changes_since
from agentrl.training.checkpoint.saving import Saver
from agentrl.training.model.export import model_files, save_pretrained
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import float32_masters, load_model, load_processor, load_tokenizer, stop_token_ids
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.sharding import load_on_ranks, steps_on_cpu
from agentrl.training.perf.cpu import tune_cpu
from agentrl.training.perf.device import device_for
from agentrl.training.sft.contract import SftResult
from agentrl.training.sft.conversations import read_conversations
from agentrl.training.sft.model import SftModel, SftReport
from agentrl.training.update.micro_batches import MicroBatching, for_ranks
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.trainable import Steps
from agentrl.trajectory.ledger import Ledger

# The loss of one step is noisy; the final one is a mean over this many.
FINAL_STEPS = 10

MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 4096}
"""Default tokens of a micro-batch."""


class Run:
    """One rank of a supervised run. Every rank makes the same calls and gets the same results; `AllRanks` is one over
    all ranks."""

    def __init__(self, config: SftConfig, ranks: Ranks = ALONE) -> None:
        self.config = config
        self.ranks = ranks
        data, trainer = config.data, config.trainer
        self.device = device_for(trainer.device)
        if self.device.type == "cpu":
            tune_cpu()
        self.tokenizer = load_tokenizer(config.model)
        processor = load_processor(config.model, self.tokenizer, data.mm_processor_kwargs)
        self.saved_beside = processor.processor or self.tokenizer
        kwargs = data.apply_chat_template_kwargs
        stops = stop_token_ids(config.model)
        chat = Chat(self.tokenizer, check="disable", template_kwargs=kwargs, processor=processor, stop_token_ids=stops)
        self.conversations = read_conversations(data, chat, limit=data.train_max_samples)
        self.held_out = self._held_out(chat)
        rows: Any = self.conversations.ledgers
        size = min(data.train_batch_size, len(rows))
        self.loader = Loader(rows, size, shuffle=data.shuffle, seed=data.seed, drop_last=False)
        self.total = limit_of(trainer.total_training_steps) or trainer.total_epochs * self.loader.steps_per_epoch
        self.model = load_on_ranks(self._load, ranks, config.fsdp_config, device=self.device)
        self.trainable = self._sft_model(size)
        self.saver = Saver(saving_of(trainer, self.loader.steps_per_epoch), ranks, background=False)
        self.step = 0
        self.losses: list[float] = []
        self.val_loss: float | None = None

    def next_step(self) -> dict[str, float]:
        """One optimizer step, and a due validation: loss (nats per token), grad_norm, lr, tokens,
        skipped_steps (1: the gradient was not finite), val_loss."""
        ledgers: Any = self.loader.next_batch()
        batch = self._packed(ledgers)
        lr, trainer = self.trainable.optimizer.lr, self.config.trainer
        report = self.trainable.train_on(batch, SftReport())
        self.step += 1
        loss, norm = self.trainable.total_loss(report), sum(report.grad_norms)
        self.losses.append(loss)
        metrics = {"loss": loss, "grad_norm": norm, "lr": lr, "tokens": float(sum(map(len, ledgers)))}
        metrics["skipped_steps"] = float(not isfinite(norm))
        if self.held_out and self._due(trainer.test_freq):
            metrics["val_loss"] = self.val_loss = self.validate()
        return metrics

    def validate(self) -> float:
        """Mean loss of the held-out conversations over all assistant tokens, in nats per token."""
        size = self.config.data.train_batch_size
        batches = [self._packed(self.held_out[i : i + size]) for i in range(0, len(self.held_out), size)]
        tokens = [self.ranks.sum(float(batch.mask.sum())) for batch in batches]
        losses = [self.trainable.validation_loss(batch) for batch in batches]
        return sum(n * loss for n, loss in zip(tokens, losses, strict=True)) / sum(tokens)

    def length(self) -> tuple[int, int]:
        """(all steps, steps of an epoch)."""
        return self.total, self.loader.steps_per_epoch

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of a step."""
        mine = {"model": self.trainable.state_dict(), "rows": self.loader.state_dict()}
        self.saver.save(folder, step, mine, partial(save_pretrained, self.model, self.saved_beside))

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, an empty state)."""
        self.step, state = checkpoints.load(path, ranks=self.ranks)
        self.trainable.load_state_dict(state["model"])
        self.loader.load_state_dict(state["rows"])
        return self.step, {}

    def finish(self) -> SftResult:
        """Write the model."""
        trainer, last = self.config.trainer, self.losses[-FINAL_STEPS:]
        if self.held_out and self.val_loss is None:
            self.val_loss = self.validate()
        path = Path(trainer.output_dir)
        with model_folder(path, f"the model in {path}", first=self.ranks.first) as draft:
            save_pretrained(self.model, self.saved_beside, draft, merge=trainer.merge_lora)
        loss = sum(last) / len(last) if last else None
        found = self.conversations
        return SftResult(path, self.step, loss, len(found.ledgers), found.too_long, found.below, self.val_loss)

    def close(self) -> None:
        """Do nothing: no other process runs for it."""

    def _load(self, device: torch.device) -> ModelHandle:
        return float32_masters(load_model(self.config.model, device=device, seed=self.config.trainer.seed))

    def _due(self, every: int | str) -> bool:
        steps = self.loader.steps_per_epoch if every == EACH_EPOCH else int(every)
        return self.step == self.total or (steps > 0 and self.step % steps == 0)

    def _held_out(self, chat: Chat) -> Sequence[Ledger]:
        data = self.config.data
        if data.val_files is None:
            return []
        return read_conversations(data, chat, data.val_files, limit=data.val_max_samples, what="data.val_files").ledgers

    def _packed(self, ledgers: Sequence[Ledger]) -> Batch:
        """This rank's share of a batch."""
        batch = pack_ledgers(ledgers)
        return batch.share(self.trainable.assign_shares(BatchOutline.of(batch))[self.ranks.data_rank]).to(self.device)

    def _sft_model(self, size: int) -> SftModel:
        config, trainer, ranks = self.config, self.config.trainer, self.ranks
        clip, offload = trainer.grad_clip, steps_on_cpu(config.fsdp_config, ranks)
        optimizer = Optimizer(
            self.model, config.optim, grad_clip=clip, total_steps=self.total, ranks=ranks, offload=offload
        )
        steps = Steps(prompts=size, epochs=1, shuffle=False, seed=0)
        tokens = trainer.max_token_len_per_gpu or MICRO_BATCH_TOKENS[self.device.type]
        sizes = for_ranks(MicroBatching(max_tokens=tokens), self.model, ranks=ranks)
        return SftModel(self.model, optimizer=optimizer, micro_batching=sizes, steps=steps, device=self.device)


def saving_of(trainer: SftTrainer, epoch: int) -> Trainer:
    """The settings of its checkpoints as a run of reinforcement learning has them. `epoch`: steps of one."""
    every = trainer.save_freq
    return Trainer(
        default_local_dir=trainer.output_dir,
        rollout_data_dir=None,
        validation_data_dir=None,
        resume_mode=trainer.resume_mode,
        resume_from_path=trainer.resume_from_path,
        save_freq=epoch if every == EACH_EPOCH else None if every is None else int(every),
        max_actor_ckpt_to_keep=trainer.max_ckpt_to_keep or 0,
    )


def replaced(config: SftConfig) -> list[Path]:
    """Files of an existing model that a new run replaces: all, unless the same settings made it."""
    output = Path(config.trainer.output_dir)
    settings = output / CONFIG_FILE
    same = settings.is_file() and not changes_since(settings, config)
    return [] if same else model_files(output)
