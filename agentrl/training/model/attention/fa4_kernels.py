"""The GPUs for FlashAttention 4, and the folder of its compiled kernels. Imports no PyTorch."""

import os
from contextlib import suppress

from agentrl.core.remote_files import cache_folder

GPUS = (9, 10)
"""Major compute capabilities that it is fast on: Hopper, Blackwell."""
CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE"
"""How the names of its variables begin."""


def keeps_compiled() -> bool:
    """Let it keep what it compiles, unless the user says otherwise; whether it does. It reads that at its import."""
    folder = cache_folder() / "flash_attention"
    with suppress(OSError):  # a folder that cannot be written
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault(f"{CACHE}_DIR", str(folder))
        os.environ.setdefault(f"{CACHE}_ENABLED", "1")
    return os.environ.get(f"{CACHE}_ENABLED") == "1"
