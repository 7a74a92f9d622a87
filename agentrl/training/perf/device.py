"""Which device a name in the configuration means."""

import torch

from agentrl.core.errors import UserError


def device_for(name: str) -> torch.device:
    """The device of `trainer.device`: cpu, cuda, or auto (a GPU if there is one). Raises UserError."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name == "cuda" and not available:
        raise UserError("trainer.device=cuda: this PyTorch sees no GPU; set trainer.device=auto")
    return torch.device(name)


def as_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype that autocast, where it is on, would give it in a matrix product."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
