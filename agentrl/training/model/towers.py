"""Leaves the towers of a model, which read images and sounds, out of memory: a run on text does not need them.

Invariant: every other tensor keeps its name, so that engines and files know it; an export has the towers of the files
that the model was loaded from.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

MODALITIES = ("image", "audio")


class LeftOut(nn.Module):
    """Stands where a tower was."""


def tower_of(network: Any, modality: str) -> nn.Module | None:
    """The network that reads images or audio; None where a model has none, or it is left out."""
    tower = network.get_encoder(modality=modality)
    return None if tower is network or isinstance(tower, LeftOut) or tower is None else tower


def leave_out_towers(network: Any, present: Collection[str] = ()) -> None:
    """Take the towers out of a transformers model, but those with tensors among the names `present`."""
    for tower in filter(None, (tower_of(network, modality) for modality in MODALITIES)):
        name = next(name for name, module in network.named_modules() if module is tower)
        if not any(tensor.startswith(f"{name}.") for tensor in present):
            network.set_submodule(name, LeftOut())


def tensors_left_out(network: Any) -> dict[str, Tensor]:
    """The tensors of the towers that were left out, on the meta device, by their names in the whole model."""
    if not any(isinstance(module, LeftOut) for module in network.modules()):
        return {}
    with torch.device("meta"):
        whole = type(network)(network.config).state_dict()
    own = network.state_dict().keys()
    return {name: tensor for name, tensor in whole.items() if name not in own}


def as_saved(network: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as checkpoints have them, where transformers keeps others in memory (such as fused experts)."""
    from transformers.core_model_loading import revert_weight_conversion  # takes seconds to import

    saved: dict[str, Tensor] = revert_weight_conversion(network, dict(state))
    return saved
