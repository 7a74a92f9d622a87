"""Write models as folders in Hugging Face format, with or without weights."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedTokenizerBase

from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.loading import language_head
from agentrl.training.parallel.shards import gather_trainable, unwrapped

ADAPTER = "adapter_model.safetensors"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*")
DESCRIPTION = (
    "config.json",
    "generation_config.json",
    CONFIG,
    "*processor_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
)
"""Other files of a model's folder."""


def save_pretrained(module: Any, tokenizer: PreTrainedTokenizerBase, path: Path, *, merge: bool = False) -> None:
    """Write a Hugging Face folder: the model, or with LoRA the adapter in peft format, and the tokenizer.

    `merge` writes a full model with the LoRA adapter merged; an unsharded `module` is merged in place. Collective for a
    sharded model: all ranks call it, the first one writes.
    """
    if hasattr(module, "units"):
        _save_sharded(module, tokenizer, path)
        if merge and module.ranks.first and isinstance(module.module, PeftModel):
            fold_adapter(path, next(module.module.parameters()).dtype)
        return
    if merge and isinstance(module, PeftModel):
        module = module.merge_and_unload()
    module.save_pretrained(path)
    tokenizer.save_pretrained(path)


def model_files(folder: Path) -> list[Path]:
    """The model files in a folder; none where it has no weights."""
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        return []
    return sorted({file for pattern in (*WEIGHTS, *DESCRIPTION) for file in folder.glob(pattern)})


def write_model(module: Any, tokenizer: PreTrainedTokenizerBase, path: Path, *, weights: bool) -> None:
    """Write the `huggingface` folder of a checkpoint: configuration and tokenizer, and with `weights` the model."""
    if weights:
        save_pretrained(module, tokenizer, path)
    elif not hasattr(module, "ranks") or module.ranks.first:
        write_description(unwrapped(module), path)
        tokenizer.save_pretrained(path)


def write_description(module: Any, path: Path) -> None:
    """Configuration files, without weights."""
    path.mkdir(parents=True, exist_ok=True)
    if isinstance(module, PeftModel):
        module.active_peft_config.save_pretrained(str(path))
        return
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(path)
    if getattr(module, "generation_config", None) is not None:
        module.generation_config.save_pretrained(path)


def _save_sharded(module: Any, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Gather an adapter at once, a model unit by unit, in the first rank's CPU memory, and write it."""
    whole: dict[str, Tensor] = {}
    if isinstance(module.module, PeftModel):
        whole = {name: tensor.cpu() for name, tensor in gather_trainable(module).items() if "lora_" in name}
        if module.ranks.first:
            write_description(module.module, path)
            save_adapter(whole, path)
    else:
        for tensors in module.units():
            if module.ranks.first:
                whole |= {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        if module.ranks.first:
            module.module.save_pretrained(path, state_dict=whole)
    if module.ranks.first:
        tokenizer.save_pretrained(path)


def save_adapter(weights: dict[str, Tensor], path: Path) -> None:
    """Write an adapter's weights (CPU tensors) under peft's names, which leave out the adapter's name."""
    file = path / ADAPTER
    save_file({name.replace(".default.", "."): tensor for name, tensor in weights.items()}, file.with_suffix(".new"))
    os.replace(file.with_suffix(".new"), file)  # an engine may still have the old file mapped


def fold_adapter(path: Path, dtype: torch.dtype | None) -> None:
    """Replace an adapter in a folder by its base model with the adapter merged, in `dtype` (None: the base's own)."""
    base = json.loads((path / CONFIG).read_text())["base_model_name_or_path"]
    module = language_head(AutoConfig.from_pretrained(base)).from_pretrained(base, dtype=dtype or "auto")
    merged = PeftModel.from_pretrained(module, str(path)).merge_and_unload()
    for file in (path / CONFIG, path / ADAPTER):
        file.unlink()
    merged.save_pretrained(path)
