"""Write models and adapters as folders in Hugging Face format, with or without weights.

Invariants: a model that is written has every tensor that transformers reads for it; an adapter has the names and the
configuration that peft reads. All exports go through here.
"""

import json
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from agentrl.core.errors import UserError
from agentrl.core.outputs import UNREAD
from agentrl.training.model.adapter import CONFIG, adapter_names, merged, saved_adapter
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import language_head
from agentrl.training.model.towers import as_saved, tensors_left_out

ADAPTER = "adapter_model.safetensors"
WHOLE, ONE_OF_ONE = "model.safetensors", "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
FILE_BYTES = 4 << 30
"""Bytes of weights from which on the next ones go into another file."""
SHOWN = 5
"""Most tensors that an error names."""
PROCESSORS = "*processor_config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*")
DESCRIPTION = (
    "config.json",
    "generation_config.json",
    CONFIG,
    PROCESSORS,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
)
"""Other files of a model's folder."""


def save_pretrained(
    model: nn.Module | ModelHandle, tokenizer: PreTrainedTokenizerBase | None, path: Path, *, merge: bool = False
) -> None:
    """Write a Hugging Face folder: the model, or with LoRA the adapter in peft format, and the tokenizer.

    `merge` writes a full model with the LoRA adapter merged; an unsharded model is merged in place. Collective for a
    sharded model: all ranks call it, the first one writes.
    """
    model = ModelHandle.of(model)
    network, first = model.module, model.ranks.first
    if model.adapted and merge and not model.sharded:
        write_whole(merged(network), None, path)
    elif model.adapted:
        tensors = gather_adapter(model)
        if first:
            write_description(model, path)
            save_adapter(tensors, path)
        if first and merge:
            fold_adapter(path, next(network.parameters()).dtype)
    elif first:
        write_whole(network, model.units() if model.sharded else None, path)
    else:
        for _ in model.units():  # the first rank gathers them
            pass
    if first and tokenizer is not None:
        tokenizer.save_pretrained(path)


def model_files(folder: Path) -> list[Path]:
    """The model files in a folder; none where it has no weights."""
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        return []
    return sorted({file for pattern in (*WEIGHTS, *DESCRIPTION) for file in folder.glob(pattern)})


def write_model(model: ModelHandle, tokenizer: PreTrainedTokenizerBase, path: Path, *, weights: bool) -> None:
    """Write the `huggingface` folder of a checkpoint: configuration and tokenizer, and with `weights` the model."""
    if weights:
        save_pretrained(model, tokenizer, path)
    elif model.ranks.first:
        write_description(model, path)
        tokenizer.save_pretrained(path)


def write_description(model: ModelHandle, path: Path) -> None:
    """Configuration files, without weights."""
    path.mkdir(parents=True, exist_ok=True)
    if model.adapted:
        model.module.active_peft_config.save_pretrained(str(path))
        return
    module = model.base
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(path)
    if module.can_generate() and module.generation_config is not None:
        module.generation_config.save_pretrained(path)
    _add_rest(module, path)


def write_whole(module: Any, units: Iterator[dict[str, Tensor]] | None, path: Path) -> None:
    """Write a model with its own tensors, or with those of `units` by their names in it, of which no more than a file's
    are in memory at one time. All units are taken, whatever fails: to gather them is collective.

    Raises UserError that names the tensors which transformers would not find there, or would not read.
    """
    module.save_pretrained(path, state_dict=None if units is None else {})
    if units is not None:
        try:
            _write_units(module, units, path)
        finally:
            deque(units, maxlen=0)
    _add_rest(module, path)
    _, found = type(module).from_pretrained(path, device_map="meta", output_loading_info=True)
    names = sorted({*found["missing_keys"], *found["unexpected_keys"], *(n for n, *_ in found["mismatched_keys"])})
    if names:
        raise UserError(
            f"the export would not be the whole {type(module).__name__}, but lose {len(names)} tensors: "
            f"{', '.join(names[:SHOWN])}; if its checkpoint is of an older version, resume the run and save again"
        )


def _write_units(module: Any, units: Iterator[dict[str, Tensor]], path: Path) -> None:
    files: dict[str, str] = {}
    for number, part in enumerate(_parts(module, units), start=1):
        files |= dict.fromkeys(part, f"model-{number:05d}.safetensors")
        save_file(part, path / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
    if len(set(files.values())) == 1:
        (path / files.popitem()[1]).rename(path / WHOLE)
    else:
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def _parts(module: Any, units: Iterator[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The tensors of each file."""
    part: dict[str, Tensor] = {}
    for unit in units:
        part |= {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in as_saved(module, unit).items()}
        if sum(tensor.nbytes for tensor in part.values()) >= FILE_BYTES:
            yield part
            part = {}
    yield part


def _add_rest(module: Any, path: Path) -> None:
    """Add what a loaded model does not have of its files: processors, towers that are left out, tensors that
    transformers skips, such as those of multi-token prediction. A model that is the language part of another leaves
    the other parts."""
    if not module.name_or_path:
        return
    missing: Any = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    config = cached_file(module.name_or_path, "config.json", **missing)
    if not config or json.loads(Path(config).read_text()).get("model_type") != module.config.model_type:
        return
    source = Path(config).parent
    for file in source.glob(PROCESSORS):
        if not (path / file.name).exists():
            shutil.copy(file, path)
    towers, there = as_saved(module, tensors_left_out(module)), {name for name, _ in _stored(path)}
    unread = re.compile("|".join(module._keys_to_ignore_on_load_unexpected or ["$^"]))
    rest = ((name, file) for name, file in _stored(source) if name in towers or unread.search(name))
    added = {name: file.get_tensor(name) for name, file in rest if name not in there}
    if not added:
        return
    save_file(added, path / UNREAD, metadata={"format": "pt"})
    if (path / WHOLE).exists():  # transformers reads this one file, or those in an index
        (path / WHOLE).rename(path / ONE_OF_ONE)
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(there, ONE_OF_ONE)}))
    if (path / INDEX).exists():
        index = json.loads((path / INDEX).read_text())
        index["weight_map"] |= dict.fromkeys(added, UNREAD)
        (path / INDEX).write_text(json.dumps(index))


def _stored(folder: Path) -> Iterator[tuple[str, Any]]:
    """The name of each tensor in a folder, with the file that has it."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            yield from ((name, opened) for name in opened.keys())  # noqa: SIM118


def gather_adapter(model: ModelHandle) -> dict[str, Tensor]:
    """The whole tensors of an adapter under peft's names in files. Collective for a sharded model."""
    tensors = model.gather_trainable() | model.saved_buffers()
    return {name: tensors[own] for name, own in adapter_names(model.module).items()}


def save_adapter(tensors: dict[str, Tensor], path: Path) -> None:
    """Write an adapter's tensors, by their names in files."""
    file = path / ADAPTER
    whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    save_file(whole, file.with_suffix(".new"), metadata={"format": "pt"})
    os.replace(file.with_suffix(".new"), file)  # an engine may still have the old file mapped


def fold_adapter(path: Path, dtype: torch.dtype | None) -> None:
    """Replace an adapter in a folder by its base model with the adapter merged, in `dtype` (None: the base's own)."""
    base = json.loads((path / CONFIG).read_text())["base_model_name_or_path"]
    module = language_head(AutoConfig.from_pretrained(base)).from_pretrained(base, dtype=dtype or "auto")
    whole = merged(saved_adapter(module, str(path)))
    for file in (path / CONFIG, path / ADAPTER):
        file.unlink()
    write_whole(whole, None, path)
