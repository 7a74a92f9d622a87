"""Which device, and which number format, a name in the configuration means."""

import torch

from agentrl.core.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_for(name: str) -> torch.device:
    """`trainer.device`: cpu, cuda, or auto, which takes a GPU where there is one. Raises UserError."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name == "cuda" and not available:
        raise UserError("trainer.device=cuda: this PyTorch sees no GPU; set trainer.device=auto")
    return torch.device(name)


def as_autocast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast, where it is on, would hand a tensor to a matrix product."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
