"""Half precision on a GPU: an output layer in float32, and updates beside those in float32."""

import copy

import pytest
import torch
import torch.nn.functional as F

from agentrl.config.schema import Actor, Optim
from agentrl.config.schema.fsdp import FsdpConfig, MixedPrecision
from agentrl.training import PolicyActor
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head import chunked
from agentrl.training.model.head.chunked import ChunkedLogprobs
from agentrl.training.model.head.float32_head import in_float32
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.parallel.sharding import load_on_ranks
from tests.training.tiny import random_batch, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")
LENGTHS = [30, 1, 12, 60, 9]


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("vocabulary", [97, 32000])
def test_products_in_float32(kernels, vocabulary, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cuda", vocabulary * 40)  # several chunks
    torch.manual_seed(0)
    leaves = [torch.randn(100, 64), torch.randn(vocabulary, 64) * 0.3, torch.randn(vocabulary)]
    targets, by = torch.randint(vocabulary, (100,), device=CUDA), torch.randn(2, 100, device=CUDA)
    errors = {}
    for wide in (True, False):
        mine = [x.to(CUDA, torch.bfloat16).requires_grad_() for x in leaves]
        reference = [x.detach().double().requires_grad_() for x in mine]
        found = ChunkedLogprobs.apply(*mine, targets, 0.7, kernels, wide)
        logprobs = (F.linear(*reference) * 0.7).log_softmax(-1)
        wanted = [logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)]
        errors[wide] = max(float((f - w).detach().abs().max()) for f, w in zip(found, wanted, strict=True))
        sum((f * b).sum() for f, b in zip(found, by, strict=True)).backward()
        sum((w * b).sum() for w, b in zip(wanted, by.double(), strict=True)).backward()
        slopes = [(m.grad - r.grad).norm() / r.grad.norm() for m, r in zip(mine, reference, strict=True)]
        assert max(slopes) < (4e-3 if wide else 3e-2)
    assert errors[True] < 1e-4 < 1e-3 < errors[False]


def moved(computed: str, *, wide: bool = False) -> tuple[torch.Tensor, dict[str, float]]:
    """(by how much an update moves the parameters, its metrics) with layers that compute in `computed`."""

    def load(device):
        module = copy.deepcopy(tiny("qwen3")).to(device)
        if wide:
            in_float32(module.get_output_embeddings())
        return ModelHandle(module)

    config = FsdpConfig(mixed_precision=MixedPrecision(param_dtype=computed))
    module = (model := load_on_ranks(load, ALONE, config, device=CUDA)).module
    before = [p.detach().clone() for p in module.parameters()]
    optim = Optim(lr=1e-6, weight_decay=0.0)
    actor = PolicyActor(model, actor=Actor(optim=optim), temperature=1.0, device=CUDA, total_steps=5)
    metrics = actor.update(random_batch(LENGTHS))
    return torch.cat([(p - b).flatten() for p, b in zip(module.parameters(), before, strict=True)]), metrics


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("computed", ["bfloat16", "float16"])
def test_an_update_goes_where_one_in_float32_goes(computed, wide):
    exact, plain = moved("float32")
    found, metrics = moved(computed, wide=wide)
    clear = exact.abs() > 0.5e-6  # elsewhere rounding decides about the sign of a gradient near 0
    assert torch.cosine_similarity(found[clear], exact[clear], dim=0) > (0.85 if computed == "bfloat16" else 0.97)
    assert metrics["actor/grad_norm"] == pytest.approx(plain["actor/grad_norm"], rel=0.1)
    assert metrics.get("actor/skipped_steps", 0.0) == 0.0
