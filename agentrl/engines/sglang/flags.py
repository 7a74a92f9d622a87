"""SGLang's command line from agentrl's settings."""

from pathlib import Path
from typing import Any

from agentrl.engines.servers.backend import AGREED, KEEP_ALIVE
from agentrl.engines.servers.host import ask
from agentrl.engines.servers.settings import ServerSettings, flag_words, memory_share
from agentrl.engines.sglang.fast import PACKAGES, fast_flags

LAUNCHER = Path(__file__).parent / "launcher" / "agentrl_standby.py"
SHIM = Path(__file__).parent / "cpu_shim"
CPU_CACHE_TOKENS = 32768
"""Tokens of KV cache on a CPU, where the trainer uses the same memory."""
KEPT_BACK = 2
"""Tokens of `context_length` that SGLang never fills: a sequence ends so many tokens before it."""


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
        return always | AGREED
    return always | {"PYTHONPATH": str(SHIM), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _common(settings: ServerSettings) -> dict[str, Any]:
    chunk = settings.max_batched_tokens if settings.chunked_prefill else -1
    return {
        "model_path": settings.model,
        "load_format": settings.load_format,
        "dtype": settings.dtype,
        "context_length": settings.max_model_len + KEPT_BACK,
        "max_running_requests": settings.max_num_seqs,
        "tp_size": settings.tensor_parallel,
        "random_seed": settings.seed,
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "skip_server_warmup": True,  # the first request compiles as much, and comes 2 s earlier
        "grammar_backend": "none",
        "chunked_prefill_size": chunk,
        "enable_deterministic_inference": settings.deterministic,
        "enable_fp32_lm_head": settings.head_in_float32,
        "trust_remote_code": settings.trust_remote_code,
        "json_model_override_args": dict(settings.override_config) or None,
        "log_level": "info" if settings.log_stats else "warning",
        **_adapter(settings),
    }


def _adapter(settings: ServerSettings) -> dict[str, Any]:
    if settings.adapter is None:
        return {}
    own = {"lora_backend": "torch_native"} if settings.device == "cpu" else {}
    return own | {
        "enable_lora": True,
        "max_lora_rank": settings.adapter.rank,
        "lora_target_modules": list(settings.adapter.targets),
        "max_loras_per_batch": 2,  # the policy's, and "none", with which the server begins
    }


def _gpu(settings: ServerSettings) -> dict[str, Any]:
    host = ask(settings.python, *PACKAGES)
    return {
        "mem_fraction_static": memory_share(settings, host.memory),
        "disable_cuda_graph": settings.eager,
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
