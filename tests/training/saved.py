"""A checkpoint that is on disk at once."""

from pathlib import Path
from typing import Any

from agentrl.training.checkpoint import folders


def save_checkpoint(*given: Any, **named: Any) -> Path:
    """Write a checkpoint; arguments as of `folders.begin`."""
    return folders.begin(*given, **named)()
