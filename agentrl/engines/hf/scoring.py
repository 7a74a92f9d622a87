"""Log-probs of given tokens by one pass of the policy's module."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.engines.hf.adapters import LoadedAdapter, adapted
from agentrl.engines.hf.fallback import evaluating
from agentrl.engines.scores import TokenScores
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import score_tokens


def scored(module: Any, ids: Sequence[int], k: int, adapter: LoadedAdapter) -> TokenScores:
    """The log-probs of the tokens, NaN for the first, and of the `k` likeliest in place of each, at temperature 1;
    `k`: at least 0."""
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    alone = model.get_output_embeddings() not in (adapter.parts or {})  # else its weight does not make the logits
    handle = ModelHandle(module, log_prob_kernels="triton" if alone else None)

    def likeliest(logits: Tensor, _: Tensor) -> Tensor:
        values, found = logits.log_softmax(-1).topk(k)
        return torch.cat([values, found], 1).T  # ids as floats, which are exact up to 2**24

    with adapted(model, adapter), evaluating(model):
        table = score_tokens(handle, list(ids), next(model.parameters()).device, likeliest).numpy().T
    table[0] = np.nan
    logprobs, values, found = np.split(table, [1, 1 + k], 1)
    return TokenScores(logprobs[:, 0], np.nan_to_num(found).astype(np.int32), values)
