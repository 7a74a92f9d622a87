"""LoRA adapters of folders over the policy's module, which does not get them as parts.

Invariant: after `adapted` the module is as it was before, and the adapters that the trainer has in it do not count
within.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.core.errors import UserError
from agentrl.training.model.adapter import CONFIG, first_line
from agentrl.training.model.export import ADAPTER
from agentrl.training.model.towers import as_saved

PREFIX, A, B, COPY = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".base_layer.weight"
OTHERS = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "use_rslora", "fan_in_fan_out")
"""Settings of peft under which an adapter is more than its matrices and one scale."""


@dataclass(eq=False)
class LoadedAdapter:
    """The matrices of an adapter."""

    parts: Mapping[Any, tuple[Tensor, Tensor]] | None
    """Linear layer -> A [rank, in] and B [out, rank], which has the scaling in it; empty: the base alone; None: the
    module as it is, with the adapters that are active in it."""


AS_IS = LoadedAdapter(None)


def read_adapter(folder: Path, model: Any) -> LoadedAdapter:
    """The adapter in a folder, on the layers of a model. Raises UserError for another than plain LoRA."""
    model = getattr(model, "get_base_model", lambda: model)()
    try:
        config, tensors = json.loads((folder / CONFIG).read_text()), load_file(folder / ADAPTER)
        parts = parts_of(model, tensors, config["lora_alpha"] / config["r"])
        fits = not any(map(config.get, OTHERS)) and all(name.endswith((A, B, COPY)) for name in tensors)
        fits = fits and all(_fits(layer, *matrices) for layer, matrices in parts.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, SafetensorError) as error:
        raise UserError(f"{folder}: the adapter cannot be read: {first_line(error)}") from error
    if not fits:
        raise UserError(f"{folder}: rollout.name=hf samples from plain LoRA of this model's linear layers alone")
    return LoadedAdapter(parts)


def parts_of(model: Any, tensors: Mapping[str, Tensor], scale: float) -> dict[Any, tuple[Tensor, Tensor]]:
    """The parts of an adapter by its tensors under peft's names."""
    device, names = next(model.parameters()).device, [name.removesuffix(A) for name in tensors if name.endswith(A)]
    return {_layer(model, n): (tensors[n + A].to(device), tensors[n + B].to(device) * scale) for n in names}


@contextmanager
def adapted(model: Any, adapter: LoadedAdapter) -> Iterator[None]:
    """The model with this adapter and no other, in this context."""
    with ExitStack() as undo:
        for wrapper in () if adapter.parts is None else model.modules():
            if hasattr(wrapper, "_disable_adapters"):  # peft's own switch would change `requires_grad` too
                undo.callback(setattr, wrapper, "_disable_adapters", wrapper._disable_adapters)
                wrapper._disable_adapters = True
        for layer, (a, b) in (adapter.parts or {}).items():
            undo.callback(layer.register_forward_hook(partial(_add, a, b)).remove)
        yield


def same_weights(model: Any, folder: Path) -> bool:
    """Whether a model's own weights, without adapters, are those of a folder."""
    saved = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    own = {name.replace(".base_layer", ""): p.data.cpu() for name, p in model.named_parameters() if "lora_" not in name}
    found = as_saved(model, own).items()
    return all(name in saved and torch.equal(tensor.to(saved[name]), saved[name]) for name, tensor in found)


def _add(a: Tensor, b: Tensor, layer: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
    return (out + linear(linear(inputs[0].to(a.dtype), a), b)).to(out.dtype)


def _layer(model: Any, name: str) -> Any:
    layer = model.get_submodule(name.removeprefix(PREFIX))
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def _fits(layer: Any, a: Tensor, b: Tensor) -> bool:
    """Whether the shapes are those of the layer, whichever way it keeps its weight."""
    return a.shape[0] == b.shape[1] and {a.shape[1], b.shape[0]} == {*layer.weight.shape}
