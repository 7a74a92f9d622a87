"""Teachers on servers, on a GPU where there is one: their log-probs of given tokens beside those of transformers."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.schema import Rollout
from agentrl.engines.scores import checked_scores
from agentrl.engines.servers import Replica, ServerProcess
from agentrl.engines.servers.installation import find_python
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import SGLang
from agentrl.engines.vllm import VLLM
from tests.engines import tiny

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
DEVICE = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
GAP = {"cuda": 0.06, "cpu": 1e-4}[DEVICE[0]]
"""Nats, mean."""
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.mark.parametrize(("name", "kind"), [("sglang", SGLang), ("vllm", VLLM)])
def test_given_tokens_have_the_models_log_probs(name: str, kind: Any, tmp_path: Path) -> None:
    python = find_python(name, name)
    if python is None:
        pytest.skip(f"{name} is not installed")
    model = tiny.llama(**SIZES)
    model.save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {
        "rollout": Rollout(load_format="auto", gpu_memory_utilization=0.2),
        "extra": {"max_logprobs": 64} if name == "vllm" else {},
    }
    settings = ServerSettings(python, str(tmp_path / "model"), *DEVICE, 2048, 64, **options)
    backend = kind(settings)
    port = free_port()
    server = ServerProcess(backend.command(port), backend.environment(), tmp_path / "server.log")
    # SGLang reports the vocabulary's last token, which is padding in real models, as token 0.
    ids = torch.randint(0, tiny.VOCABULARY - 1, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    reference = tiny.logits(model, ids).log_softmax(-1)

    async def scored(k: int) -> tuple[Any, float]:
        replica = Replica(backend, f"http://127.0.0.1:{port}", server)
        replica.launch()
        await replica.ready(600)
        try:
            await backend.score(replica.http, ids, (), 500, k, 300)
            begun = time.perf_counter()
            answers = await asyncio.gather(*(backend.score(replica.http, ids, (), 500, k, 300) for _ in range(64)))
            seconds = time.perf_counter() - begun
        finally:
            await replica.close()
        wanted = np.arange(500, 1000)
        return checked_scores(answers[0], np.array(ids), wanted, k=k, vocabulary=tiny.VOCABULARY), seconds

    scores, seconds = asyncio.run(scored(32))
    print(f"{name}: 64 requests of 1000 tokens, top 32 of 500: {seconds:.2f} s, {64_000 / seconds:,.0f} tokens/s")
    given = reference[torch.arange(499, 999), torch.tensor(ids[500:])].numpy()
    assert np.abs(scores.logprobs[500:] - given).mean() < GAP
    best = reference[499:999].gather(-1, torch.from_numpy(scores.topk_ids[500:]).long()).numpy()
    assert np.abs(scores.topk_logprobs[500:] - best).mean() < GAP
