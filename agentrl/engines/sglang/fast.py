"""SGLang's flags for speed, by the GPU and by what is installed beside SGLang.

SGLang captures CUDA graphs for a number of sequences that depends on the GPU's memory alone (256 on 80 to 141 GB): more
sequences run at half the speed. It takes FlashAttention 3 on a Hopper, and FlashInfer for sampling, whether their
kernels are there or not.
"""

from typing import Any

from agentrl.engines.servers.host import Host
from agentrl.engines.servers.settings import ServerSettings

PACKAGES = ("sglang", "sgl_kernel", "flashinfer", "flashinfer_jit_cache")
HOPPER = 9
SOURCES = "srt/server_args.py", "srt/arg_groups/fields/*.py"
"""Files of SGLang, of older and newer versions, that name its flags."""
LEAST_MEMORY = {1024: 60 << 30, 512: 35 << 30, 256: 0}
"""Most sequences of a graph -> bytes of the smallest GPU for it."""


def fast_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """Flags that make the server fast on this machine; those that the settings name are left out."""
    chosen = graph_flags(settings, host) | kernel_flags(host)
    named = {name.replace("-", "_") for name in settings.extra}
    groups = {name.split("_backend")[0] for name in named if name.endswith("attention_backend")}
    if groups:  # prefill and decode may have one each
        chosen.pop("attention_backend", None)
    if any(name.startswith("cuda_graph") for name in named):
        chosen = {name: value for name, value in chosen.items() if not name.startswith("cuda_graph")}
    return {name: value for name, value in chosen.items() if name not in named}


def graph_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """CUDA graphs for as many sequences as run at once."""
    if settings.eager:
        return {}
    newer = not host.has("sglang") or host.mentions("sglang", "cuda_graph_bs_decode", *SOURCES)
    most = next(most for most, memory in LEAST_MEMORY.items() if not host.memory or host.memory >= memory)
    return {"cuda_graph_bs_decode" if newer else "cuda_graph_bs": graph_sizes(min(settings.max_num_seqs, most))}


def graph_sizes(most: int) -> list[int]:
    """Numbers of sequences to capture graphs for. A batch is padded to the next one, which costs little, since a step
    mostly reads the cache; each graph costs a tenth of a second at the start."""
    steps = [1, 2, 4, 8, 16, *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, most, 128)]
    return [*(size for size in steps if size < most), most]


def kernel_flags(host: Host) -> dict[str, Any]:
    """Back ends in place of those whose kernels are missing."""
    flags = {}
    if host.capability[0] == HOPPER and not host.has("sgl_kernel", "flash_ops*"):
        flags["attention_backend"] = "triton"
    prebuilt = host.has("flashinfer_jit_cache") or host.has("flashinfer", "data/aot/sampling/*")
    if host.has("sglang") and not prebuilt and not host.compiles:
        flags["sampling_backend"] = "pytorch"
    return flags
