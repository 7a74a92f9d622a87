"""The critic's network: a language model's backbone with a head of one output, the value of the tokens so far.

Invariants: a head that is missing in the files starts at zero, so every first value is 0 on all ranks; packing changes
a value by float rounding only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForTokenClassification
from transformers.models.auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, MODEL_MAPPING
from transformers.utils import logging as transformers_logging

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.model.forward import run
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.float32_head import heads_in_float32
from agentrl.training.model.loading import float32_masters, load_model
from agentrl.training.parallel.ulysses import token_shard_of


def load_value_model(model: Model, *, device: torch.device, seed: int) -> ModelHandle:
    """The critic's network on `device`, in eval mode; values are float32. Raises UserError if it cannot be loaded."""
    loaded = load_model(model, device=device, seed=seed, head=ValueHead, task="SEQ_CLS", section="critic.model")
    heads_in_float32(loaded.base)
    return float32_masters(loaded)


class ValueHead:
    """Loads any causal LM folder as a token classification model with one label."""

    @staticmethod
    def from_pretrained(source: str, *, config: PretrainedConfig, **arguments: Any) -> PreTrainedModel:
        """Load the model; head weights that are missing in the folder start at 0."""
        if not any("TokenClassification" in name for name in config.architectures or []):
            config.num_labels = 1
        if config.num_labels != 1:
            raise UserError(f"it has {config.num_labels} labels; a critic has one")
        kind = _class_for(config)
        before = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity_error()  # a missing head is expected
        try:
            module, info = kind.from_pretrained(source, config=config, output_loading_info=True, **arguments)
        finally:
            transformers_logging.set_verbosity(before)
        for name in info["missing_keys"]:
            if not name.startswith(module.base_model_prefix + "."):
                nn.init.zeros_(module.get_parameter(name))
        return module


def _class_for(config: PretrainedConfig) -> Any:
    """transformers' own class, or a new one of the backbone and transformers' generic head."""
    if type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING or type(config) not in MODEL_MAPPING:
        return AutoModelForTokenClassification
    backbone = MODEL_MAPPING[type(config)]
    base = next(kind for kind in backbone.__mro__[1:] if issubclass(kind, PreTrainedModel))
    name = backbone.__name__.removesuffix("Model") + "ForTokenClassification"
    return type(name, (GenericForTokenClassification, base), {"__module__": __name__})


class TokenValues:
    """Values of a batch's tokens under a value model, shared, not copied."""

    keep = 0
    logit_bytes = 0

    def __init__(self, model: nn.Module | ModelHandle) -> None:
        self.model = ModelHandle.of(model)

    def __call__(self, batch: Batch) -> tuple[Tensor]:
        """Values f32 [T]: entry t is the value of the tokens before t; 0 off the mask."""
        model = self.model
        part = token_shard_of(batch, model.ranks)
        own = part.owned(batch.scored)
        rows = part.before(own)
        values = model.run_gathered(lambda: run(model, batch, part, self._values)[rows].float())
        return (part.gather(torch.zeros(batch.num_tokens, device=batch.ids.device).index_copy(0, own, values)),)

    def _values(self, ids: Tensor, positions: Tensor, **arguments: object) -> Tensor:
        return self.model.base(input_ids=ids[None], position_ids=positions, **arguments).logits[0, :, 0]
