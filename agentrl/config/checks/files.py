"""Keys about files that go together; `agentrl.config.paths` looks for the files."""

from typing import Any

from agentrl.config.schema import Data, Trainer
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError


def custom_class(data: Data | SftData) -> None:
    """Both keys of the dataset class, or none."""
    custom_cls = data.custom_cls
    if bool(custom_cls.path) != bool(custom_cls.name):
        given, lacking = ("path", "name") if custom_cls.path else ("name", "path")
        raise UserError(f"data.custom_cls.{given} is set without data.custom_cls.{lacking}: set both")


def as_list(value: Any) -> list[Any]:
    """None: nothing; one thing: a list of it."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


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
