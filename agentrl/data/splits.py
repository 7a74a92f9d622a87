"""The rows of a run: training batches, validation batches, and the number of steps."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.derived import own_loops
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.core.numbers import limit_of
from agentrl.data.dataset import load_dataset
from agentrl.data.loader import Loader
from agentrl.data.overlong import check_overlong, filter_overlong
from agentrl.trajectory.row import Row

ROWS_PER_WORKER = 10_000
"""Rows from which on another process helps to measure prompts."""


@dataclass
class Splits:
    """Training batches, validation rows, and the number of steps."""

    train: Loader
    validation: list[Sequence[Row]]
    """Batches of validation rows; empty without `data.val_files`."""
    total_steps: int


@dataclass(frozen=True)
class Reader:
    """Reads the rows that `config.data` names, or takes the caller's, and filters them."""

    config: Config
    tokenizer: Any
    prompt_length: Callable[[Row], int]
    """Tokens of a row's first prompt, tools included."""
    load_processor: Callable[[], Any] = lambda: None
    """The model's processor, for a dataset class of the user's own."""
    train: Sequence[Row] | None = None
    """Training rows of the caller's; None: the rows of `data.train_files`."""
    val: Sequence[Row] | None = None
    """Validation rows of the caller's; None: the rows of `data.val_files`."""

    def splits(self) -> Splits:
        """All rows of the run. Raises UserError."""
        data, trainer = self.config.data, self.config.trainer
        filter_groups = self.config.algorithm.filter_groups
        size = data.gen_batch_size if filter_groups.enable and data.gen_batch_size else data.train_batch_size
        loader = Loader(self._read("train"), size, shuffle=data.shuffle, seed=data.seed, sampler=data.row_sampler)
        total_steps = limit_of(trainer.total_training_steps) or trainer.total_epochs * loader.steps_per_epoch
        return Splits(loader, self.validation(), total_steps)

    def validation(self) -> list[Sequence[Row]]:
        """Validation rows, `data.val_batch_size` at a time. Raises UserError."""
        data = self.config.data
        if data.val_files is None and self.val is None:
            return []
        rows = self._read("val")
        size = data.val_batch_size or len(rows)
        loader = Loader(rows, size, shuffle=data.validation_shuffle, seed=data.seed, drop_last=False)
        return [loader.next_batch() for _ in range(loader.steps_per_epoch)]

    def _read(self, split: str) -> Sequence[Row]:
        data, given = self.config.data, getattr(self, split)
        limit = limit_of(getattr(data, f"{split}_max_samples"))
        rows = self._from_files(f"data.{split}_files") if given is None else given
        rows = rows if limit is None else rows[:limit]
        if data.filter_overlong_prompts:
            workers = min(os.cpu_count() or 1, len(rows) // ROWS_PER_WORKER)
            rows = filter_overlong(rows, self.prompt_length, data.max_prompt_length, workers=workers)
        elif not own_loops(self.config.rollout):  # which may write another prompt
            check_overlong(rows, self.prompt_length, data.max_prompt_length, data.truncation)
        return rows

    def _from_files(self, key: str) -> Sequence[Row]:
        data, files = self.config.data, getattr(self.config.data, key.rpartition(".")[2])
        if files is None:
            raise UserError(f"{key} is not set: name a parquet or jsonl file; `agentrl data --help` makes one")
        processor = self.load_processor() if data.custom_cls.path else None
        return load_dataset(data, files, self.tokenizer, processor=processor, what=key)
