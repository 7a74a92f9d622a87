"""SGLang's command line from agentrl's settings, with flags for speed by the GPU and the installed packages.

SGLang captures CUDA graphs for a number of sequences that depends on the GPU's memory alone (256 on 80 to 141 GB): more
sequences run at half the speed. It takes FlashAttention 3 on a Hopper, and FlashInfer for sampling, whether their
kernels are there or not. It decodes nothing while it prefills, and prefills as soon as one request waits: turns that
follow tools cost less with graphs of small prefills, and, where they come one by one, a few at a time.
"""

from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT, KEEP_ALIVE
from agentrl.engines.servers.host import Host, inspect_host
from agentrl.engines.servers.settings import DRAFTED, ServerSettings, flag_words, graph_sizes, memory_share

LAUNCHER = Path(__file__).parent / "launcher" / "agentrl_standby.py"
SHIM = Path(__file__).parent / "cpu_shim"
CPU_CACHE_TOKENS = 32768
"""Tokens of KV cache on a CPU, where the trainer uses the same memory."""
KEPT_BACK = 2
"""Tokens of `context_length` that SGLang never fills: a sequence ends so many tokens before it."""
PACKAGES = ("sglang", "sgl_kernel", "flashinfer", "flashinfer_jit_cache")
HOPPER = 9
PROMPT_SIZES = (32, 64, 128, 256, 512)
"""Tokens of a prefill to capture graphs for; a larger one keeps the GPU busy without."""
STEPS_BETWEEN_READS = 4
"""Steps of decoding between two looks at new requests, where these come at any time: each look may stop all others."""
DRAFTING = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": DRAFTED + 1,  # with the token before them
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 1,  # one guess: a tree of them costs more than it keeps
}
LOADER, ROUNDS_AGAIN = "srt/model_loader/loader.py", "_supports_quantized_rl_reload"
"""The file of SGLang, and the word in it, that round updated weights; older versions spoil some norms and scales."""
SPOILS = "this SGLang cannot round updated weights (0.5.23 can, those of Qwen2 and Qwen3); set rollout.name=vllm"
SOURCES = "srt/server_args.py", "srt/arg_groups/fields/*.py"
"""Files of SGLang, of older and newer versions, that name its flags."""


def command(settings: ServerSettings, port: int) -> list[str]:
    """The command line of a server on `port` of this machine."""
    flags = _common(settings) | (_gpu(settings) if settings.device == "cuda" else _cpu(settings))
    flags |= {name.replace("-", "_"): value for name, value in settings.extra.items()}
    words = [word for name, value in flags.items() for word in flag_words(name, value)]
    return [settings.python, str(LAUNCHER), "--host", "127.0.0.1", "--port", str(port), *words]


def environment(settings: ServerSettings) -> dict[str, str]:
    """Environment variables of a server: on a CPU the shim, and one thread, since the trainer needs the others."""
    always = {
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE),
        "SGLANG_MM_AVOID_RETOKENIZE": "1",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # KEPT_BACK more than the model has, which are never filled
        "SGLANG_VLM_CACHE_SIZE_MB": "0",  # a cache of image features would outlive an update of the weights
    }
    if settings.device == "cuda":
        return always | BROADCAST_ENVIRONMENT
    return always | {"PYTHONPATH": str(SHIM), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _common(settings: ServerSettings) -> dict[str, Any]:
    rollout, policy = settings.rollout, settings.policy
    chunk = rollout.max_num_batched_tokens if rollout.enable_chunked_prefill else -1
    return {
        "model_path": settings.model,
        "load_format": rollout.load_format,
        "dtype": settings.dtype,
        "context_length": settings.max_model_len + KEPT_BACK,
        "max_running_requests": settings.max_num_seqs,
        "tp_size": rollout.tensor_model_parallel_size,
        "random_seed": settings.seed,
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "skip_server_warmup": True,  # the first request compiles as much, and comes 2 s earlier
        "grammar_backend": "none",
        "chunked_prefill_size": chunk,
        "enable_deterministic_inference": rollout.deterministic,
        "enable_fp32_lm_head": policy.enable_fp32_lm_head,
        "enable_return_routed_experts": settings.experts is not None,
        "trust_remote_code": policy.trust_remote_code,
        "json_model_override_args": dict(policy.override_config) or None,
        "log_level": "warning" if rollout.disable_log_stats else "info",
        **_adapter(settings),
        **_quantized(settings),
        **(DRAFTING if rollout.speculative_algorithm else {}),
    }


def _quantized(settings: ServerSettings) -> dict[str, Any]:
    """Flags for rounded weights: whole ones need the loader that rounds each update. Raises UserError without it."""
    rounding = settings.rollout.quantization
    if rounding is None or settings.adapter is not None:
        return {"quantization": rounding}
    host = inspect_host(settings.python, *PACKAGES)
    if host.has("sglang") and not host.mentions("sglang", ROUNDS_AGAIN, LOADER):
        raise UserError(f"rollout.quantization={rounding}: {SPOILS}")
    return {"quantization": rounding, "load_format": "flash_rl"}


def _adapter(settings: ServerSettings) -> dict[str, Any]:
    if settings.adapter is None:
        return {}
    own = {"lora_backend": "torch_native"} if settings.device == "cpu" else {}
    return own | {
        "enable_lora": True,
        "max_lora_rank": settings.adapter.rank,
        "lora_target_modules": list(settings.adapter.targets),
        "max_loras_per_batch": max(len(settings.policy.policies), 1) + 1,  # and "none", with which it begins
    }


def _gpu(settings: ServerSettings) -> dict[str, Any]:
    host = inspect_host(settings.python, *PACKAGES)
    return {
        "mem_fraction_static": memory_share(settings, host.memory),
        "disable_cuda_graph": settings.rollout.enforce_eager,
        "enable_memory_saver": settings.sleeps,
        **fast_flags(settings, host),
    }


def _cpu(settings: ServerSettings) -> dict[str, Any]:
    tokens = settings.max_num_seqs * settings.max_model_len
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "sleep_on_idle": True,  # or the scheduler spins on a core that the trainer needs
        "max_total_tokens": max(settings.max_model_len + 512, min(tokens, CPU_CACHE_TOKENS)),
    }


def fast_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """Flags that make the server fast on this machine; those that the settings name are left out."""
    chosen = graph_flags(settings, host) | kernel_flags(host) | schedule_flags(settings)
    named = {name.replace("-", "_") for name in settings.extra}
    # A related flag counts too: of attention for prefill or decode alone, and another way to size the graphs.
    return {name: value for name, value in chosen.items() if not any(_related(name, other) for other in named)}


def graph_flags(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """CUDA graphs for as many sequences as run at once, and for the few new tokens of a turn after a tool."""
    if settings.rollout.enforce_eager:
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
