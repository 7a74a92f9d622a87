"""State of all random number generators, as plain data for a checkpoint."""

import random
from typing import Any

import numpy
import torch


def rng_state() -> dict[str, Any]:
    """State of Python's, numpy's and torch's generators, of every CUDA device too."""
    legacy: Any = numpy.random.get_state(legacy=True)
    kind, keys, position, has_gauss, gauss = legacy
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the state that `rng_state` gave."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
