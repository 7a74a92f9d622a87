"""Keys that every run needs."""

from agentrl.config.schema import Data, Model, Trainer
from agentrl.core.errors import UserError


def required(model: Model, data: Data, trainer: Trainer) -> None:
    """A model and rows."""
    rows = "val_files" if trainer.val_only else "train_files"
    needed = {
        "model.path": (model.path, "a model's folder or hub id; `agentrl model smollm2` prepares one"),
        f"data.{rows}": (getattr(data, rows), "parquet or jsonl; `agentrl data` writes some"),
    }
    missing = [f"{key} ({what})" for key, (value, what) in needed.items() if not value]
    if missing:
        raise UserError(f"not set: {' and '.join(missing)}")
