"""A real vLLM server on this CPU, with a tiny model of ours."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.schema import Rollout
from agentrl.engines.servers import RemoteEngine, Replica, ServerProcess
from agentrl.engines.servers.installation import find_python
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.adapter import AdapterTransport, AdapterWeights
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.transport import Link, Transport
from agentrl.engines.vllm import VLLM
from tests.engines import tiny
from tests.engines.conformance import Subject

LENGTH = 2500
SIZES = {"hidden_size": 128, "intermediate_size": 64}
"""Heads of 32: the smallest that vLLM's attention on a CPU takes."""
PIECE = 256
"""Tokens of a prompt that go through the model at once: fewer than some checks' prompts have."""
BUCKET = 1 << 16
"""Bytes: several buckets, and layers whose parts lie in two of them."""


def python() -> str:
    """vLLM's interpreter; skips the test without one."""
    found = find_python("vllm", "vllm")
    if found is None:
        pytest.skip("`agentrl engine install vllm --cpu` was not run")
    return found


@asynccontextmanager
async def subject(
    model: Any,
    folder: Path,
    *,
    transport: Callable[[PolicyWeights], Transport] | None = None,
    adapted: bool = False,
    **changes: Any,
) -> AsyncIterator[Subject]:
    """A server with `model`'s weights, or those of an adapter beside them; `changes` to its settings."""
    model.save_pretrained(folder / "model")
    settings = {"device": "cpu", "dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": 32}
    rollout = Rollout(max_num_batched_tokens=PIECE, load_format="auto" if adapted else "dummy", start_timeout=900)
    settings |= {"rollout": rollout} | changes
    if adapted:
        model = tiny.lora(model)
        settings |= {"adapter": AdapterWeights(model).shape}
    backend = VLLM(ServerSettings(python=python(), model=str(folder / "model"), **settings))
    port = free_port()
    # One thread: two wait for each other at every operation where anything else runs.
    environment = backend.environment() | {"VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0)))}
    server = ServerProcess(backend.command(port), environment, folder / "vllm.log")
    replica = Replica(backend, f"http://127.0.0.1:{port}", server)
    weights = PolicyWeights(model, dtype=getattr(torch, str(settings["dtype"])))
    files = FilesTransport(Link(weights, model.config, folder / "weights", BUCKET))
    way: Transport = transport(weights) if transport else files
    if adapted:
        way = AdapterTransport(AdapterWeights(model), folder=folder / "weights")
    engine = RemoteEngine(backend, [replica], way)
    try:
        await engine.start()
        await engine.update_weights(0)
        yield Subject(
            engine,
            logits=lambda ids: tiny.logits(model, ids),
            vocabulary=tiny.VOCABULARY,
            change_weights=lambda: tiny.change(model),
            resumes=False,
            min_p_first=True,
        )
    finally:
        await engine.close()
