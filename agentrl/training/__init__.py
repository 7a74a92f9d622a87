"""Training: batches, the policy and its update, checkpoints, supervised fine-tuning.

Names load on first use, so `import agentrl.training` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.core.lazy import type_imports

if TYPE_CHECKING:
    from agentrl.training.batches.batch import Batch as Batch
    from agentrl.training.batches.packing import pack as pack
    from agentrl.training.batches.packing import pack_ledgers as pack_ledgers
    from agentrl.training.batches.packing import pack_tokens as pack_tokens
    from agentrl.training.model.export import save_pretrained as save_pretrained
    from agentrl.training.model.loading import load_model as load_model
    from agentrl.training.model.loading import load_processor as load_processor
    from agentrl.training.model.loading import load_tokenizer as load_tokenizer
    from agentrl.training.model.loading import stop_token_ids as stop_token_ids
    from agentrl.training.perf.cpu import tune_cpu as tune_cpu
    from agentrl.training.perf.device import device_for as device_for
    from agentrl.training.update.actor import PolicyActor as PolicyActor
    from agentrl.training.update.advantages import ComputeAdvantages as ComputeAdvantages

_HOMES = type_imports(__file__)
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
