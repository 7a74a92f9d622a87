"""The dtypes that settings name. Imports no PyTorch, so that `--help` stays quick."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by name; every dtype that a model may compute in."""

COMPUTED = tuple(BYTES)
STORED = ("float32", "bfloat16")
"""Dtypes of stored weights: float16 has too small a range for them."""


def torch_dtype(name: str) -> "torch.dtype":
    """The dtype of one of COMPUTED. Raises KeyError for another name."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
