"""Training: batches, the policy and its update, checkpoints, supervised fine-tuning.

Names load on first use, so `import agentrl.training` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.training.batches.batch import Batch
    from agentrl.training.batches.packing import pack, pack_ledgers, pack_tokens, place_rewards
    from agentrl.training.model.export import save_pretrained
    from agentrl.training.model.loading import load_model, load_processor, load_tokenizer, stop_token_ids
    from agentrl.training.perf.cpu import tune_cpu
    from agentrl.training.perf.device import device_for
    from agentrl.training.update.actor import PolicyActor
    from agentrl.training.update.advantages import ComputeAdvantages

_NAMES = {
    "update.actor": "PolicyActor",
    "update.advantages": "ComputeAdvantages",
    "batches.batch": "Batch",
    "model.export": "save_pretrained",
    "model.loading": "load_model load_processor load_tokenizer stop_token_ids",
    "batches.packing": "pack pack_ledgers pack_tokens place_rewards",
    "perf.cpu": "tune_cpu",
    "perf.device": "device_for",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Batch",
    "ComputeAdvantages",
    "PolicyActor",
    "device_for",
    "load_model",
    "load_processor",
    "load_tokenizer",
    "pack",
    "pack_ledgers",
    "pack_tokens",
    "place_rewards",
    "save_pretrained",
    "stop_token_ids",
    "tune_cpu",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
