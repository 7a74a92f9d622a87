"""The settings of this engine, `rollout.engine_kwargs.hf`, and the memory of its KV cache."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_1, Range
from agentrl.core.errors import UserError, did_you_mean

GIB = 2**30
CACHE_SHARE = 0.25
UNKNOWN_BYTES = 2 * GIB
VALID = {
    "max_num_batched_tokens": AT_LEAST_1,
    "kv_cache_gb": ABOVE_0,
    "threads": AT_LEAST_1,
    "matmul_precision": Range(("highest", "high", "medium").__contains__, "must be highest, high or medium"),
}
"""Options that do not take every value of their type."""


@dataclass(frozen=True)
class Options:
    """Settings of this engine alone."""

    max_num_batched_tokens: int | None = None
    """Tokens one forward pass takes: every running sequence's next token, then chunks of waiting prompts; null:
    1024 on a CPU, 8192 on a GPU."""
    kv_cache_gb: float | None = None
    """Most GiB of keys and values, allocated as needed; null: a quarter of the memory that is free at the start."""
    threads: int | None = None
    """CPU threads of the whole process (see threads.py); null: leave torch's number."""
    matmul_precision: str | None = None
    """float32 matmul precision of the whole process (see threads.py); null: leave torch's."""
    eos_token_ids: Sequence[int] = ()
    """Stop tokens of every request, besides its own."""
    fallback: bool = False
    """Use transformers' generation even for a model that this engine's own forward pass supports."""


def read_options(given: dict[str, Any]) -> Options:
    """Options from the config's dict. Raises UserError for an unknown name or an impossible value."""
    known = [field.name for field in fields(Options)]
    for name, value in given.items():
        if name not in known:
            near = did_you_mean(name, known)
            raise UserError(f"rollout.engine_kwargs.hf.{name} does not exist; {near}there are {', '.join(known)}")
        if value is not None and name in VALID and not VALID[name].fits(value):
            raise UserError(f"rollout.engine_kwargs.hf.{name}={value}: it {VALID[name].says}")
    return Options(**given)


def cache_bytes(device: torch.device, given_gb: float | None) -> int:
    """Budget in bytes: `given_gb` GiB, else a quarter of the free memory of `device`."""
    if given_gb is not None:
        return int(given_gb * GIB)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CACHE_SHARE)
    return int(_free_host_memory() * CACHE_SHARE)


def _free_host_memory() -> int:
    names = os.sysconf_names if hasattr(os, "sysconf") else {}
    if "SC_AVPHYS_PAGES" not in names:
        return int(UNKNOWN_BYTES / CACHE_SHARE)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
