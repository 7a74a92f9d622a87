"""Turn a checkpoint into a folder that transformers and engines load."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from agentrl.core.dtypes import torch_dtype
from agentrl.core.errors import UserError
from agentrl.core.inside import check_links
from agentrl.core.outputs import model_folder
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.export import fold_adapter, model_files, save_adapter
from agentrl.training.model.loading import language_head

TRAINED = ("policy", "model")
"""The model's name in a checkpoint: of `agentrl train`, of `agentrl sft`."""


def merge(
    checkpoint: Path, out: Path, *, dtype: str | None = None, adapter: bool = False, overwrite: bool = False
) -> int:
    """Write the model of a checkpoint to `out`, in Hugging Face format, with its tokenizer; returns the step.

    `dtype` of the weights; None: as trained. A checkpoint of an adapter gives the adapter in peft's format; with
    `adapter`, its base model with the adapter merged. A model that exists in `out` is replaced with `overwrite`. Raises
    UserError, also where a model exists and `overwrite` is not set.
    """
    if model_files(out) and not overwrite:
        raise UserError(f"{out} has a model already: name another folder, or replace it with --overwrite")
    check_links(checkpoint)  # its files are copied
    step, state = checkpoints.load(checkpoint)
    trained: dict[str, Any] = next((state[name] for name in TRAINED if name in state), {})
    saved = trained.get("parameters")
    if not saved and not checkpoints.has_weights(checkpoint):
        raise UserError(f"{checkpoint} has no weights: actor.checkpoint.save_contents was without model")
    described = checkpoint / checkpoints.HUGGINGFACE
    whole = {name: tensor.whole() for name, tensor in saved.items()} if saved else _exported(described)
    weights = {name: _cast(tensor, dtype) for name, tensor in whole.items()}
    with model_folder(out, f"the model in {out}") as draft:
        if (described / CONFIG).is_file():
            _write_adapter(described, weights, draft)
            if adapter:
                fold_adapter(draft, torch_dtype(dtype) if dtype else None)
        else:
            _write_model(described, weights, draft)
        AutoTokenizer.from_pretrained(described).save_pretrained(draft)
        for file in described.glob("*processor_config.json"):  # of models that read images
            shutil.copy(file, draft)
        for file in model_files(out):  # an old file would be loaded with the new ones
            file.unlink()
    return step


def _exported(described: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint that has them in Hugging Face format alone."""
    return {
        name: tensor for file in sorted(described.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def _write_model(described: Path, weights: dict[str, Tensor], out: Path) -> None:
    config = AutoConfig.from_pretrained(described)
    with torch.device("meta"):
        module = language_head(config).from_config(config, dtype=next(iter(weights.values())).dtype)
    unknown = weights.keys() - dict(module.named_parameters()).keys()
    if unknown:
        raise UserError(f"{described} describes another model: it has no {min(unknown)}")
    module.save_pretrained(out, state_dict=weights)


def _write_adapter(described: Path, weights: dict[str, Tensor], out: Path) -> None:
    """Write an adapter as peft does: configuration and weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_bytes((described / CONFIG).read_bytes())
    save_adapter(weights, out)


def _cast(tensor: Tensor, dtype: str | None) -> Tensor:
    return tensor if dtype is None else tensor.to(torch_dtype(dtype))
