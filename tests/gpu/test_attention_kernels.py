"""FlashAttention 4, where it is installed, and half-precision copies on a GPU."""

import pytest
import torch

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.batches.shared_prompts import Prompt, shared_prompts
from agentrl.training.model.attention import varlen, varlen_fa4
from agentrl.training.model.attention.expand import expand_keys
from agentrl.training.model.compute_copies import add_product, summed
from agentrl.training.model.handle import ModelHandle
from tests.training.tiny import random_batch, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", varlen.NEWER)
@pytest.mark.parametrize("shape", [(16, 8, 128), (9, 3, 64), (4, 4, 128)])
def test_a_newer_kernel_agrees_with_float32(name, shape) -> None:
    kernel = varlen.NEWER[name]
    if torch.cuda.get_device_capability()[0] not in varlen_fa4.GPUS or not kernel.installed():
        pytest.skip(f"{name} is not installed")
    assert varlen.disagreement(name, CUDA, *shape) < varlen.AGREES


@pytest.mark.parametrize("name", ["fa2", "fa4"])
def test_a_kernel_computes_the_last_tokens_of_sequences_alone(name) -> None:
    if name != varlen.attention_kernel(CUDA, 16, 8, 128) and name != "fa2":
        pytest.skip(f"{name} is not used")
    assert varlen.disagreement(name, CUDA, 16, 8, 128, varlen.OWN_LENGTHS) < varlen.AGREES


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_kernel_gives_the_same_for_any_number_of_sequences(count) -> None:
    name = varlen.attention_kernel(CUDA, 4, 2, 64)
    draw = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 300, (count,), generator=draw)
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(CUDA, torch.int32)
    tokens = int(lengths.sum())
    q, k, v = (
        torch.randn(1, n, tokens, 64, generator=draw).to(CUDA, torch.bfloat16).requires_grad_() for n in (4, 2, 2)
    )
    columns = []
    for kernel in (name, "fa2"):
        output = varlen.varlen_attention(q, k, v, bounds, int(lengths.max()), None, kernel)
        columns.append((output, *torch.autograd.grad(output.float().square().sum(), (q, k, v))))
    for found, wanted in zip(*columns, strict=True):
        assert (found - wanted).float().norm() < 0.02 * wanted.float().norm()


def gradients(monkeypatch, *, copies: bool) -> dict[str, torch.Tensor]:
    with monkeypatch.context() as patch:
        if not copies:
            patch.setattr(ModelHandle, "use_compute_copies", lambda model: None)
        module = tiny("qwen3", tie_word_embeddings=True).to(CUDA)
        actor = Actor(ppo_max_token_len_per_gpu=60, optim=Optim(lr=0.0))
        model = ModelHandle(module, compute_dtype=torch.bfloat16)
        policy = PolicyActor(model, actor=actor, temperature=1.0, device=CUDA, total_steps=9)
    found, step = {}, policy.optimizer.step

    def caught() -> float:
        found.update({n: s.parameter.grad.clone() for n, s in policy.optimizer.shards.items()})
        return step()

    policy.optimizer.step = caught  # type: ignore[method-assign]
    policy.update(random_batch([30, 1, 12, 60, 9]))
    return found


def test_copies_give_the_gradients_of_autocast(monkeypatch) -> None:
    mine, theirs = gradients(monkeypatch, copies=True), gradients(monkeypatch, copies=False)
    for name in theirs:
        assert (mine[name] - theirs[name]).norm() < 0.02 * theirs[name].norm(), name


def test_sums_in_float32() -> None:
    a, b = (torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for shape in ((300, 64), (64, 200)))
    total = torch.ones(300, 200, device=CUDA)
    add_product(total, a, b)
    torch.testing.assert_close(total, 1 + a.float() @ b.float(), atol=1e-4, rtol=1e-4)
    ids, rows = torch.randint(50, (1000,), device=CUDA), torch.randn(1000, 8, device=CUDA)
    once, sums = (torch.zeros(50, 8, device=CUDA).index_add_(0, *pair) for pair in (summed(ids, rows), (ids, rows)))
    torch.testing.assert_close(once, sums, atol=1e-4, rtol=1e-4)


def test_gradients_of_shared_keys_are_summed_as_on_the_cpu() -> None:
    draw = torch.Generator().manual_seed(0)
    prompts = [Prompt(i // 8, 30) for i in range(24)]
    lengths = [30 + i for i in range(24)]
    rows, gradient = (torch.randn(1, 3, n, 40, generator=draw) for n in (sum(lengths) - 21 * 30, sum(lengths)))
    found = []
    for device in (CUDA, torch.device("cpu")):
        layout, own = shared_prompts(lengths, prompts, device), rows.to(device, torch.bfloat16).requires_grad_()
        seen = expand_keys(own, layout.seen, layout.order, layout.bounds)
        found.append(torch.autograd.grad(seen, own, gradient.to(device, torch.bfloat16))[0].cpu())
    torch.testing.assert_close(*found, atol=0.02, rtol=0.02)
