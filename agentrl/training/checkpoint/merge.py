"""Turn a checkpoint into a folder that transformers and engines load."""

import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from agentrl.core.dtypes import torch_dtype
from agentrl.core.errors import UserError
from agentrl.core.inside import check_links
from agentrl.core.outputs import check_apart, model_folder
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.export import ADAPTER, fold_adapter, model_files, save_adapter, write_whole
from agentrl.training.model.handle import BLOCK
from agentrl.training.model.loading import language_head
from agentrl.training.model.towers import leave_out_towers

TRAINED = ("policy", "model")
"""The model's name in a checkpoint: of `agentrl train`, of `agentrl sft`."""


def merge(
    checkpoint: Path, out: Path, *, dtype: str | None = None, adapter: bool = False, overwrite: bool = False
) -> int:
    """Write the model of a checkpoint to `out`, in Hugging Face format, with its tokenizer; returns the step.

    `dtype` of the weights; None: as trained. A checkpoint of an adapter gives the adapter in peft's format; with
    `adapter`, its base model with the adapter merged. Of several policies the first is in `out` itself, and each other
    one in a folder of its name there. A model that exists in `out` is replaced with `overwrite`. Raises
    UserError, also where a model exists and `overwrite` is not set.
    """
    if model_files(out) and not overwrite:
        raise UserError(
            f"{out} has a model already: name another folder, or replace it with --overwrite (in Python overwrite=True)"
        )
    check_apart(out, "OUT", {"CHECKPOINT": checkpoint})
    check_links(checkpoint)  # its files are copied
    step, state = checkpoints.load(checkpoint)
    trained: dict[str, Any] = next((state[name] for name in TRAINED if name in state), {})
    if not trained.get("parameters") and not checkpoints.has_weights(checkpoint):
        raise UserError(f"{checkpoint} has no weights: actor.checkpoint.save_contents was without model")
    described, wanted = checkpoint / checkpoints.HUGGINGFACE, torch_dtype(dtype) if dtype else None
    with model_folder(out, f"the model in {out}") as draft:
        # The folders of models: the checkpoint's own, and one of each further policy.
        for name in (".", *sorted(file.parent.name for file in described.glob(f"*/{CONFIG}"))):
            part = trained if name == "." else state.get(f"policy {name}", {})
            _write_policy(described / name, part, draft / name, wanted, adapter=adapter)
            for file in model_files(out / name):  # an old file would be loaded with the new ones
                file.unlink()
    return step


def _write_policy(
    described: Path, trained: dict[str, Any], out: Path, dtype: torch.dtype | None, *, adapter: bool
) -> None:
    if (described / CONFIG).is_file():
        _write_adapter(described, trained, out, dtype)
        if adapter:
            fold_adapter(out, dtype)
    else:
        _write_model(described, trained, out, dtype)
    AutoTokenizer.from_pretrained(described).save_pretrained(out)
    for file in described.glob("*processor_config.json"):  # of models that read images
        shutil.copy(file, out)


def _write_model(described: Path, trained: dict[str, Any], out: Path, dtype: torch.dtype | None) -> None:
    config = AutoConfig.from_pretrained(described)
    head = language_head(config)
    if not trained.get("parameters"):  # the checkpoint has the model in Hugging Face format alone
        write_whole(head.from_pretrained(described, dtype=dtype or "auto"), None, out)
        return
    saved = trained["parameters"] | trained.get("fixed", {})
    with torch.device("meta"):
        module = head.from_config(config, dtype=dtype or next(iter(saved.values())).read(0, 1).dtype)
    leave_out_towers(module, saved)
    parameters = dict(module.named_parameters())  # buffers, such as tables, have their own dtype
    blocks = groupby(saved, lambda name: BLOCK.match(name)[0])  # type: ignore[index]  # it matches nothing too
    units = ({n: _cast(saved[n].whole(), dtype if n in parameters else None) for n in names} for _, names in blocks)
    write_whole(module, units, out)


def _write_adapter(described: Path, trained: dict[str, Any], out: Path, dtype: torch.dtype | None) -> None:
    """Write an adapter as peft does: configuration and weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_bytes((described / CONFIG).read_bytes())
    tensors = _whole(trained.get("fixed", {})) | _whole(trained.get("parameters", {}), dtype)
    # Older checkpoints do not name the tensors: they have LoRA alone.
    names = trained.get("adapter") or {name.replace(".default.", "."): name for name in tensors if ".lora_" in name}
    whole = {name: tensors[own] for name, own in names.items()}
    save_adapter(whole or {n: _cast(t, dtype) for n, t in load_file(described / ADAPTER).items()}, out)


def _whole(saved: dict[str, Any], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {name: _cast(tensor.whole(), dtype) for name, tensor in saved.items()}


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
