"""Training: batches, the policy and its update, checkpoints, supervised fine-tuning.

Names load when they are first asked for: `import agentrl.training` alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.training.actor import PolicyActor
    from agentrl.training.batch import Batch
    from agentrl.training.model import load_model, load_tokenizer, save_pretrained
    from agentrl.training.packing import pack, pack_ledgers

_HOMES = {
    "Batch": "batch",
    "PolicyActor": "actor",
    "load_model": "model",
    "load_tokenizer": "model",
    "pack": "packing",
    "pack_ledgers": "packing",
    "save_pretrained": "model",
}

__all__ = ["Batch", "PolicyActor", "load_model", "load_tokenizer", "pack", "pack_ledgers", "save_pretrained"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
