"""Which device a name in the configuration means."""

import torch

from agentrl.errors import UserError


def device_for(name: str) -> torch.device:
    """`trainer.device`: cpu, cuda, or auto, which takes a GPU where there is one. Raises UserError."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name == "cuda" and not available:
        raise UserError("trainer.device=cuda: this PyTorch sees no GPU; set trainer.device=auto")
    return torch.device(name)
