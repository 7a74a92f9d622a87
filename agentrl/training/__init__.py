"""Training: batches, the policy and its update, checkpoints, supervised fine-tuning.

Names load when they are first asked for: `import agentrl.training` alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.training.actor import PolicyActor
    from agentrl.training.batch import Batch
    from agentrl.training.cpu import tune_cpu
    from agentrl.training.device import device_for
    from agentrl.training.export import save_pretrained
    from agentrl.training.model import load_model, load_processor, load_tokenizer, stop_token_ids
    from agentrl.training.packing import pack, pack_ledgers, pack_tokens, rewarded
    from agentrl.training.weighing import Weighing

_HOMES = {
    "Batch": "batch",
    "PolicyActor": "actor",
    "Weighing": "weighing",
    "device_for": "device",
    "load_model": "model",
    "load_processor": "model",
    "load_tokenizer": "model",
    "pack": "packing",
    "pack_ledgers": "packing",
    "pack_tokens": "packing",
    "rewarded": "packing",
    "save_pretrained": "export",
    "stop_token_ids": "model",
    "tune_cpu": "cpu",
}

__all__ = [
    "Batch",
    "PolicyActor",
    "Weighing",
    "device_for",
    "load_model",
    "load_processor",
    "load_tokenizer",
    "pack",
    "pack_ledgers",
    "pack_tokens",
    "rewarded",
    "save_pretrained",
    "stop_token_ids",
    "tune_cpu",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
