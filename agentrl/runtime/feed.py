"""The rows of a run, and how many steps they make."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.config.schema import Config
from agentrl.data import Loader, Row, filter_overlong, load_dataset
from agentrl.errors import UserError
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.runtime.runtime import Runtime
from agentrl.training import load_processor

Given = Sequence[Row] | None
"""Rows of the caller's; None: the files that the settings name."""


@dataclass
class Feed:
    """Training batches, validation rows, and the number of steps."""

    train: Loader
    validation: list[Sequence[Row]]
    """Batches of validation rows; empty without `data.val_files`."""
    total_steps: int


def load_feed(config: Config, runtime: Runtime, parts: Parts = NO_PARTS) -> Feed:
    """Read, filter and batch what `config.data` names, or the rows of `parts`. Raises UserError."""
    data, trainer = config.data, config.trainer
    train = _read(config, runtime, parts.rows, "data.train_files")
    filter_groups = config.algorithm.filter_groups
    size = data.gen_batch_size if filter_groups.enable and data.gen_batch_size else data.train_batch_size
    loader = Loader(train, size, shuffle=data.shuffle, seed=data.seed)
    total_steps = trainer.total_training_steps or trainer.total_epochs * loader.steps_per_epoch
    return Feed(loader, validation_batches(config, runtime, parts.validation), total_steps)


def validation_batches(config: Config, runtime: Runtime, given: Given = None) -> list[Sequence[Row]]:
    """Validation rows, `data.val_batch_size` at a time."""
    data = config.data
    if data.val_files is None and given is None:
        return []
    rows = _read(config, runtime, given, "data.val_files")
    size = data.val_batch_size or len(rows)
    loader = Loader(rows, size, shuffle=data.validation_shuffle, seed=data.seed, drop_last=False)
    return [loader.next_batch() for _ in range(loader.steps_per_epoch)]


def _read(config: Config, runtime: Runtime, given: Given, key: str) -> Sequence[Row]:
    data = config.data
    rows = _from_files(config, runtime, key) if given is None else given
    limit = data.train_max_samples if key == "data.train_files" else data.val_max_samples
    rows = rows if limit < 0 else [rows[i] for i in range(min(limit, len(rows)))]
    if data.filter_overlong_prompts:
        rows = filter_overlong(
            rows, runtime.prompt_length, data.max_prompt_length, workers=data.filter_overlong_prompts_workers
        )
    return rows


def _from_files(config: Config, runtime: Runtime, key: str) -> Sequence[Row]:
    data, files = config.data, getattr(config.data, key.rpartition(".")[2])
    if files is None:
        raise UserError(f"{key} is not set: name a parquet or jsonl file; `agentrl data --help` makes one")
    processor = load_processor(config.model, runtime.tokenizer).processor if data.custom_cls.path else None
    return load_dataset(data, files, runtime.tokenizer, processor=processor, what=key)
