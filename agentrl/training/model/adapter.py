"""LoRA adapters (arXiv 2106.09685): new ones and saved ones."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import Network
from agentrl.core.errors import UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"


def base_and_adapter(path: str, lora_rank: int) -> tuple[str, str | None]:
    """(base model, adapter folder or None) of a model folder or hub id. Raises UserError where the ranks differ."""
    file = Path(path) / CONFIG
    if not file.is_file():
        return path, None
    try:
        saved = json.loads(file.read_text())
        base, rank = str(saved["base_model_name_or_path"]), int(saved["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"model.path: {file} is damaged: {first_line(error)}") from error
    if lora_rank not in (0, rank):
        raise UserError(f"model.lora_rank={lora_rank}, but {path} is an adapter of rank {rank}; leave lora_rank out")
    return base, path


def new_adapter(module: "PreTrainedModel", model: Network, task: str = "CAUSAL_LM") -> "PeftModel":
    """Wrap a model with a new adapter, which does not change its output yet; `task`: peft's name of the model's task.

    Raises UserError when the target modules do not exist.
    """
    from peft import LoraConfig, get_peft_model  # takes seconds to import

    targets, excluded = model.target_modules, model.exclude_modules
    lora = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=excluded if excluded is None or isinstance(excluded, str) else list(excluded),
        task_type=task,
    )
    try:
        with warnings.catch_warnings():  # peft uses an old name of transformers
            warnings.simplefilter("ignore", FutureWarning)
            return get_peft_model(module, lora)
    except ValueError as error:
        raise UserError(f"model.target_modules {targets!r} does not fit the model: {first_line(error)}") from error


def saved_adapter(module: "PreTrainedModel", folder: str) -> "PeftModel":
    """Wrap a model with a trainable adapter from disk."""
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings(
                "ignore", message=".*non-meta parameter.*"
            )  # a model on the meta device has no weights
            return PeftModel.from_pretrained(module, folder, is_trainable=True)
    except Exception as error:  # peft's own code over someone's files
        raise UserError(f"model.path: the adapter in {folder} cannot be loaded: {first_line(error)}") from error


def first_line(error: Any) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
