"""SGLang's flags for speed, by the GPU and by what is installed beside SGLang.

SGLang captures CUDA graphs for a number of sequences that depends on the GPU's memory alone (256 on 80 to 141 GB): more
sequences run at half the speed. It takes FlashAttention 3 on a Hopper, and FlashInfer for sampling, whether their
kernels are there or not. It decodes nothing while it prefills, and prefills as soon as one request waits: turns that
follow tools cost less with graphs of small prefills, and, where they come one by one, a few at a time.
"""

from typing import Any

from agentrl.engines.servers.graphs import graph_sizes
from agentrl.engines.servers.host import Host
from agentrl.engines.servers.settings import ServerSettings

PACKAGES = ("sglang", "sgl_kernel", "flashinfer", "flashinfer_jit_cache")
HOPPER = 9
PROMPT_SIZES = (32, 64, 128, 256, 512)
"""Tokens of a prefill to capture graphs for; a larger one keeps the GPU busy without."""
STEPS_BETWEEN_READS = 4
"""Steps of decoding between two looks at new requests, where these come at any time: each look may stop all others."""
SOURCES = "srt/server_args.py", "srt/arg_groups/fields/*.py"
"""Files of SGLang, of older and newer versions, that name its flags."""


def fast_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """Flags that make the server fast on this machine; those that the settings name are left out."""
    chosen = graph_flags(settings, host) | kernel_flags(host) | schedule_flags(settings)
    named = {name.replace("-", "_") for name in settings.extra}
    # A related flag counts too: of attention for prefill or decode alone, and another way to size the graphs.
    return {name: value for name, value in chosen.items() if not any(_related(name, other) for other in named)}


def graph_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """CUDA graphs for as many sequences as run at once, and for the few new tokens of a turn after a tool."""
    if settings.eager:
        return {}
    newer = not host.has("sglang") or host.mentions("sglang", "cuda_graph_bs_decode", *SOURCES)
    sizes = graph_sizes(settings.max_num_seqs, host.memory)
    if not newer:
        return {"cuda_graph_bs": sizes}
    prompts = [size for size in PROMPT_SIZES if size <= settings.max_model_len]
    return {"cuda_graph_bs_decode": sizes, "cuda_graph_bs_prefill": prompts or None}


def schedule_flags(settings: ServerSettings) -> dict[str, Any]:
    """How often new requests are read; SGLang refuses another interval beside attention that is split by data."""
    split = {name.replace("-", "_") for name in settings.extra} & {"enable_dp_attention"}
    return {"scheduler_recv_interval": STEPS_BETWEEN_READS} if settings.ahead and not split else {}


def kernel_flags(host: Host) -> dict[str, Any]:
    """Back ends in place of those whose kernels are missing."""
    flags = {}
    if host.capability[0] == HOPPER and not host.has("sgl_kernel", "flash_ops*"):
        flags["attention_backend"] = "triton"
    prebuilt = host.has("flashinfer_jit_cache") or host.has("flashinfer", "data/aot/sampling/*")
    if host.has("sglang") and not prebuilt and not host.compiles:
        flags["sampling_backend"] = "pytorch"
    return flags


def _related(name: str, other: str) -> bool:
    """Whether the user's flag `other` is about the same as `name`."""
    return name == other or any(kind in name and kind in other for kind in ("attention_backend", "cuda_graph"))
