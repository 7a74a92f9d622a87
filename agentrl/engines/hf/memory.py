"""The memory budget of the KV cache."""

import os

import torch

GIB = 2**30
SHARE = 0.25
UNKNOWN = 2 * GIB


def cache_bytes(device: torch.device, given_gb: float | None) -> int:
    """Budget in bytes: `given_gb` GiB, else a quarter of the free memory of `device`."""
    if given_gb is not None:
        return int(given_gb * GIB)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * SHARE)
    return int(_free_host_memory() * SHARE)


def _free_host_memory() -> int:
    names = os.sysconf_names if hasattr(os, "sysconf") else {}
    if "SC_AVPHYS_PAGES" not in names:
        return int(UNKNOWN / SHARE)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
