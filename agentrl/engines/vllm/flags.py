"""vLLM's command line from agentrl's settings."""

import os
from pathlib import Path
from typing import Any

from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT, KEEP_ALIVE
from agentrl.engines.servers.host import Host, inspect_host
from agentrl.engines.servers.settings import DRAFTED, ServerSettings, flag_words, graph_sizes, memory_share

WORKER = Path(__file__).parent / "worker"
SHIM = Path(__file__).parent / "cpu_shim"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `max_lora_rank` that vLLM supports."""
DRAFTING = {"method": "ngram", "num_speculative_tokens": DRAFTED, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
CPU_CACHE_GIB = "1"
"""KV cache on a CPU, where the trainer uses the same memory; VLLM_CPU_KVCACHE_SPACE overrides it."""


def command(settings: ServerSettings, port: int) -> list[str]:
    """The command line of a server on `port` of this machine."""
    flags = _common(settings) | (_gpu(settings) if settings.device == "cuda" else {})
    flags |= {name.replace("-", "_"): value for name, value in settings.extra.items()}
    words = [word for name, value in flags.items() for word in flag_words(name, value)]
    # Not `vllm serve`: that fails where the distribution has another name, as the CPU build has.
    server = [settings.python, "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, "--host", "127.0.0.1", "--port", str(port), *words]


def environment(settings: ServerSettings) -> dict[str, str]:
    """Environment variables of a server, besides those of this process."""
    rollout = settings.rollout
    own = [WORKER] if settings.device == "cuda" else [WORKER, SHIM]
    paths = [*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])]
    always = {
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_SERVER_DEV_MODE": "1",  # abort, sleep and weight updates are served in this mode only
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # handles of GPU memory are pickled, and come from this host alone
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles at the first request, and returns no filtered log-probs
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(int(settings.adapter is not None)),
        # The load is read from these statistics; an interval of a year keeps them out of the log.
        "VLLM_LOG_STATS_INTERVAL": "31536000" if rollout.disable_log_stats else "10",
    }
    if settings.device == "cuda":
        return always | BROADCAST_ENVIRONMENT | ({"VLLM_BATCH_INVARIANT": "1"} if rollout.deterministic else {})
    return always | _cpu_environment(settings)


def _common(settings: ServerSettings) -> dict[str, Any]:
    rollout, policy = settings.rollout, settings.policy
    overrides = dict(policy.override_config) | ({"head_dtype": "float32"} if policy.enable_fp32_lm_head else {})
    return {
        "model": settings.model,
        "served_model_name": "policy",
        "load_format": rollout.load_format,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        "seed": settings.seed,
        "generation_config": "vllm",  # else the model's own file sets the filters that a request does not set
        "logprobs_mode": "processed_logprobs",
        "no_enable_chunked_prefill": not rollout.enable_chunked_prefill,
        "max_num_batched_tokens": rollout.max_num_batched_tokens,
        "enforce_eager": rollout.enforce_eager or settings.device == "cpu",  # compiling takes a minute to gain a tenth
        "enable_return_routed_experts": settings.experts is not None,
        "worker_extension_cls": "agentrl_worker.Extension",
        "weight_transfer_config": {"backend": "ipc"},
        "quantization": rollout.quantization,  # online: rounded again in each update
        "speculative_config": DRAFTING if rollout.speculative_algorithm else None,
        **_image_flags(settings),
        "trust_remote_code": policy.trust_remote_code,
        "hf_overrides": overrides or None,
        "uvicorn_log_level": "warning",
        **_adapter(settings),
    }


def _image_flags(settings: ServerSettings) -> dict[str, Any]:
    if not settings.takes_images:
        return {"skip_tokenizer_init": True}  # token ids in, token ids out; processors of images need one
    return {
        "enable_scale_out": True,  # the call that takes images beside token ids
        "no_mm_device_do_normalize": True,  # its factors are weights: random at the start
    }


def _adapter(settings: ServerSettings) -> dict[str, Any]:
    if settings.adapter is None:
        return {}
    rank, count = settings.adapter.rank, max(len(settings.policy.policies), 1)
    return {"enable_lora": True, "max_loras": count, "max_lora_rank": next((r for r in RANKS if r >= rank), rank)}


def _gpu(settings: ServerSettings) -> dict[str, Any]:
    host = inspect_host(settings.python, "vllm")
    return {
        "gpu_memory_utilization": memory_share(settings, host.memory),
        "enable_sleep_mode": settings.sleeps,
        **_graphs(settings, host),
    }


def _graphs(settings: ServerSettings, host: Host) -> dict[str, Any]:
    """CUDA graphs for as many sequences as run at once; vLLM itself captures to 512, at more sizes."""
    known = host.mentions("vllm", "--cudagraph-capture-sizes", "engine/arg_utils.py")
    named = any("cudagraph" in name or name.startswith(("compilation", "cc", "O")) for name in settings.extra)
    if settings.rollout.enforce_eager or named or not known:
        return {}
    # A batch may mix tokens of prompts with the sequences' new ones.
    tokens = settings.max_num_seqs * (DRAFTED + 1 if settings.rollout.speculative_algorithm else 1)
    most = max(tokens, min(2 * settings.max_num_seqs, 512))
    return {"cudagraph_capture_sizes": graph_sizes(most, host.memory)}


def _cpu_environment(settings: ServerSettings) -> dict[str, str]:
    """One thread a core, each bound: unbound ones wait on the server's other processes at every operation."""
    alone = settings.rollout.tensor_model_parallel_size == 1
    bound = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if alone else "auto"
    chosen = {"VLLM_CPU_OMP_THREADS_BIND": bound, "VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB}
    return {"CUDA_VISIBLE_DEVICES": ""} | {name: os.environ.get(name, value) for name, value in chosen.items()}
