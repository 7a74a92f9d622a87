"""FLOPs of forward and backward passes, and peak FLOPs of GPUs: together, model FLOPs utilisation (MFU).

Model FLOPs (arXiv 2204.02311): 2 per parameter and token forward, twice that backward, and causal attention. Recomputed
work (checkpointed activations, chunks of logits) does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from agentrl.training.model.sizes import attention_width, sizes_of

PEAKS = {
    "B200": 2250e12,
    "MI300X": 1307e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "H800": 989e12,
    "GH200": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
}
"""Dense bf16 FLOPs per second by a part of the device's name; the longest match counts."""


def peak_flops(device: torch.device) -> float | None:
    """A GPU's peak in bf16 FLOPs per second; None where it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    fitting = [part for part in PEAKS if part in name]
    return PEAKS[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of a network per token, by part."""

    backbone: float
    """Weights that each token is multiplied with, without the head's."""
    head: float
    """Weights of the output head, used for scored tokens only."""
    attention: float
    """Total width of all attention layers: layers x heads x head size, without recurrent ones."""
    frozen: bool = False
    """Whether the base weights get no gradient (LoRA): backward needs half the FLOPs."""

    def forward(self, lengths: Sequence[int], scored: int, repeated: Sequence[int] = ()) -> float:
        """FLOPs of a forward pass over sequences of these lengths; `scored`: tokens that use the head; `repeated`:
        tokens of each prompt that another sequence has already, and that is computed there."""
        tokens = sum(lengths) - sum(repeated)
        squares = sum(n * n for n in lengths) - sum(n * n for n in repeated)
        return 2 * self.backbone * tokens + 2 * self.head * scored + 2 * self.attention * squares

    def update(self, lengths: Sequence[int], scored: int, repeated: Sequence[int] = ()) -> float:
        """FLOPs of a forward and a backward pass."""
        return (2 if self.frozen else 3) * self.forward(lengths, scored, repeated)


def model_flops(shapes: Mapping[str, Sequence[int]], config: Any) -> ModelFlops:
    """The FLOPs of a transformers model with these parameter shapes."""
    sizes = sizes_of(config)
    embedding = [name for name in shapes if "embed" in name or name.endswith("wte.weight")]
    heads = [name for name in shapes if name.endswith(("lm_head.weight", "score.weight"))]
    vocabulary = max((_size(shapes[name]) for name in embedding), default=0.0)
    head = sum(_size(shapes[name]) for name in heads) if heads else vocabulary  # tied to the embedding
    others = (n for n in shapes if n not in (*embedding, *heads) and "lora_" not in n and not n.endswith("bias"))
    backbone = sum(_size(shapes[name]) * (sizes.active_experts if ".experts." in name else 1.0) for name in others)
    frozen = any("lora_" in name for name in shapes)
    return ModelFlops(backbone, head, attention_width(config), frozen)


def _size(shape: Sequence[int]) -> float:
    """Weights of a matrix; 0 for norms and biases, which do not multiply."""
    return float(prod(shape)) if len(shape) >= 2 else 0.0
