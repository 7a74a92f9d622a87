"""The kernels over logits against PyTorch's own operations in float64."""

import pytest
import torch
import torch.nn.functional as F

from agentrl.algorithms.kl import kl_of_logits
from agentrl.training.model.head import chunked
from agentrl.training.model.head.chunked import ChunkedLogprobs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")


def exact(hidden, weight, bias, targets, scale):
    logits = F.linear(hidden, weight, bias) * scale
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [97, 5000, 32000])
@pytest.mark.parametrize("outputs", ["both", "logprobs", "entropy"])
@pytest.mark.parametrize("keep", [0, 70, 100])
def test_values_and_gradients(dtype, vocabulary, outputs, keep, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cuda", vocabulary * 40)  # several chunks
    torch.manual_seed(0)
    inputs = [torch.randn(100, 64), torch.randn(vocabulary, 64) * 0.3, torch.randn(vocabulary)]
    targets = torch.randint(vocabulary, (100,), device=CUDA)
    weights = [torch.randn(100, device=CUDA), torch.randn(100, device=CUDA)]
    used = {"both": (0, 1), "logprobs": (0,), "entropy": (1,)}[outputs]
    mine = [x.to(CUDA, dtype).requires_grad_() for x in inputs]
    reference = [x.detach().double().requires_grad_() for x in mine]
    found = ChunkedLogprobs.apply(*mine, targets, 0.7, "triton", False, keep)
    hidden, head, bias = reference
    wanted = exact(hidden, head, bias, targets, 0.7)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for i in used:
        assert (found[i] - wanted[i]).abs().max() <= tolerance * wanted[i].abs().max()
    sum((found[i] * weights[i]).sum() for i in used).backward()
    sum((wanted[i] * weights[i]).sum() for i in used).backward()
    for one, other in zip(mine, reference, strict=True):
        assert (one.grad - other.grad).norm() <= tolerance * other.grad.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kl_to_another_model(dtype, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cuda", 5000 * 40 * chunked.COMPARED)  # several chunks
    torch.manual_seed(0)
    shapes = [(100, 64), (5000, 64), (5000,)]
    mine, other = ([(torch.randn(shape) * 0.3).to(CUDA, dtype) for shape in shapes] for _ in range(2))
    targets, weights = torch.randint(5000, (100,), device=CUDA), torch.randn(2, 100, device=CUDA)
    reference = [x.double().requires_grad_() for x in mine]
    mine = [x.requires_grad_() for x in mine]

    def compare(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        hidden, weight, bias = (x.float() for x in other)
        return kl_of_logits(logits, F.linear(hidden[rows], weight, bias) * 0.7)[None]

    tokens = torch.arange(100, device=CUDA)
    logprobs, _, kl = ChunkedLogprobs.apply(*mine, targets, 0.7, "triton", False, 0, compare, tokens)
    logp, logq = ((F.linear(*map(torch.Tensor.double, three)) * 0.7).log_softmax(-1) for three in (reference, other))
    wanted = (logp.exp() * (logp - logq)).sum(-1)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    assert (kl - wanted).abs().max() <= tolerance * wanted.abs().max()
    (weights[0] * kl + weights[1] * logprobs).sum().backward()
    (weights[0] * wanted + weights[1] * logp.gather(-1, targets[:, None])[:, 0]).sum().backward()
    for one, two in zip(mine, reference, strict=True):
        assert (one.grad - two.grad).norm() <= tolerance * two.grad.norm()
