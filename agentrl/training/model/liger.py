"""Liger's Triton kernels (the extra `liger`): norms, rotary embeddings and gated MLPs in one kernel each."""

from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl.core.errors import UserError


def use_liger_kernels(module: PreTrainedModel, section: str) -> None:
    """Use Liger's kernels in a model; unknown architectures stay unchanged. Raises UserError where they cannot run.

    Its fused losses are not used: log-probs are computed in chunks already.
    """
    if not torch.cuda.is_available():
        raise UserError(f"{section}.use_liger=true: Liger's kernels need a GPU; leave it out on a CPU")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise UserError(f"{section}.use_liger=true: Liger is not installed; pip install liger-kernel") from error
    apply: Any = _apply_liger_kernel_to_instance
    apply(model=module, cross_entropy=False, fused_linear_cross_entropy=False)
