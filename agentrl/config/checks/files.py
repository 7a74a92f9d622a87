"""Files that every run needs, and keys about files that go together; `agentrl.config.paths` looks for the files."""

from typing import Any

from agentrl.config.schema import Data, Model, Trainer
from agentrl.config.schema.sft import SftData, SftTrainer
from agentrl.core.errors import UserError
from agentrl.core.outputs import check_apart


def required(model: Model, data: Data, trainer: Trainer) -> None:
    """A model and rows."""
    rows = "val_files" if trainer.val_only and not data.val_sets else "train_files"
    needed = {
        "model.path": (model.path, "a model's folder or hub id; `agentrl model smollm2` prepares one"),
        f"data.{rows}": (getattr(data, rows), "parquet or jsonl; `agentrl data` writes some"),
    }
    missing = [f"{key} ({what})" for key, (value, what) in needed.items() if not value]
    if missing:
        raise UserError(f"not set: {' and '.join(missing)}")


def custom_class(data: Data | SftData) -> None:
    """Both keys of the dataset class, or none."""
    custom_cls = data.custom_cls
    if bool(custom_cls.path) != bool(custom_cls.name):
        given, lacking = ("path", "name") if custom_cls.path else ("name", "path")
        raise UserError(f"data.custom_cls.{given} is set without data.custom_cls.{lacking}: set both")


def resume(trainer: Trainer) -> None:
    """Check the checkpoint to resume from."""
    by_path = trainer.resume_mode == "resume_path"
    if by_path and trainer.resume_from_path is None:
        raise UserError("trainer.resume_mode=resume_path needs trainer.resume_from_path: the checkpoint's folder")
    if not by_path and trainer.resume_from_path is not None:
        raise UserError(
            f"trainer.resume_from_path is set, but trainer.resume_mode={trainer.resume_mode} does not look at it: "
            "set trainer.resume_mode=resume_path"
        )


def run_outputs(trainer: Trainer | SftTrainer, model: Model, data: Data) -> None:
    """The folders that a run writes to have no input in them, and are in none."""
    for name in ("default_local_dir", "output_dir", "rollout_data_dir", "validation_data_dir"):
        if folder := getattr(trainer, name, None):
            check_apart(folder, f"trainer.{name}", inputs(model, data))


def answers_output(model: Model, data: Data) -> None:
    """The file of answers is none of the inputs."""
    if file := getattr(data, "output_path", None):
        check_apart(file, "data.output_path", inputs(model, data))


def inputs(model: Any, data: Any) -> dict[str, Any]:
    """Models and rows by key."""
    return {"model.path": model.path, "model.tokenizer_path": model.tokenizer_path, **data.files()}
