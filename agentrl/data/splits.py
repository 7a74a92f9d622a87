"""The rows of a run: training batches, validation batches, and the number of steps."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.config.derived import own_loops
from agentrl.config.schema import Config
from agentrl.config.schema.data import ValSet
from agentrl.core.errors import UserError
from agentrl.core.numbers import limit_of
from agentrl.data.dataset import load_dataset
from agentrl.data.loader import Loader
from agentrl.data.overlong import check_overlong, filter_overlong
from agentrl.trajectory.row import Row

ROWS_PER_WORKER = 10_000
"""Rows from which on another process helps to measure prompts."""


@dataclass
class ValRows:
    """The rows of a validation set, in batches; the set of `data.val_files` has no name."""

    name: str
    settings: ValSet
    rows: Sequence[Row]
    batches: list[Sequence[Row]]

    def due(self, step: int, usual: int) -> bool:
        """Whether it is validated after `step`; `usual`: steps between validations of sets that say nothing."""
        freq = usual if self.settings.test_freq is None else self.settings.test_freq
        return freq > 0 and step % freq == 0


@dataclass
class Splits:
    """Training batches, validation rows, and the number of steps."""

    train: Loader
    validation: list["ValRows"]
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
        rows = self._read(data.train_files, "data.train_files", data.train_max_samples, self.train)
        loader = Loader(rows, size, shuffle=data.shuffle, seed=data.seed, sampler=data.row_sampler)
        total_steps = limit_of(trainer.total_training_steps) or trainer.total_epochs * loader.steps_per_epoch
        return Splits(loader, self.validation(), total_steps)

    def validation(self) -> list[ValRows]:
        """The validation sets, `data.val_batch_size` rows at a time. Raises UserError."""
        data, sampling = self.config.data, self.config.rollout.val_kwargs
        usual = ValSet(**vars(sampling), files=data.val_files, max_samples=data.val_max_samples)
        found = [] if data.val_files is None and self.val is None else [self._set("", usual, "data.val_files")]
        if taken := {row.data_source for one in found for row in one.rows} & data.val_sets.keys():
            raise UserError(f"data.val_sets.{min(taken)}: rows of data.val_files have this data_source; rename it")
        return found + [self._set(name, one, f"data.val_sets.{name}.files") for name, one in data.val_sets.items()]

    def _set(self, name: str, settings: ValSet, key: str) -> ValRows:
        data = self.config.data
        rows = self._read(settings.files, key, settings.max_samples, None if name else self.val)
        if name:  # the sets of a run may have rows in common
            rows = [replace(r, uid=f"{name}:{r.uid}", agent_name=r.agent_name or settings.agent) for r in rows]
        size = data.val_batch_size or len(rows)
        loader = Loader(rows, size, shuffle=data.validation_shuffle, seed=data.seed, drop_last=False)
        return ValRows(name, settings, rows, [loader.next_batch() for _ in range(loader.steps_per_epoch)])

    def _read(self, files: Any, key: str, most: int, given: Sequence[Row] | None) -> Sequence[Row]:
        data, limit = self.config.data, limit_of(most)
        rows = self._from_files(files, key) if given is None else given
        rows = rows if limit is None else rows[:limit]
        if data.filter_overlong_prompts:
            workers = min(os.cpu_count() or 1, len(rows) // ROWS_PER_WORKER)
            rows = filter_overlong(rows, self.prompt_length, data.max_prompt_length, workers=workers)
        elif not own_loops(self.config.rollout):  # which may write another prompt
            check_overlong(rows, self.prompt_length, data.max_prompt_length, data.truncation)
        return rows

    def _from_files(self, files: Any, key: str) -> Sequence[Row]:
        data = self.config.data
        if files is None:
            raise UserError(f"{key} is not set: name a parquet or jsonl file; `agentrl data --help` makes one")
        processor = self.load_processor() if data.custom_cls.path else None
        return load_dataset(data, files, self.tokenizer, processor=processor, what=key)
