"""The operator that hands packed attention to a kernel of another package."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from agentrl.training.batches.shared_prompts import shared_prompts
from agentrl.training.model.attention import varlen, varlen_fa4
from agentrl.training.model.attention.expand import expand_keys
from tests.training.tiny import CPU


class Kernel:
    """A kernel in PyTorch, with the log-sum-exp that FlashAttention returns; no autograd runs inside an operator."""

    @staticmethod
    def forward(q, k, v, cu_seqlens, keys, longest, scale):
        parts = [(p @ v, lse) for p, lse, _, _, v in spans(q, k, v, cu_seqlens, keys, scale)]
        return torch.cat([o.transpose(0, 1) for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)

    @staticmethod
    def backward(gradient, q, k, v, cu_seqlens, keys, output, lse, longest, scale):
        found, lengths = [], cu_seqlens.diff().tolist()
        pieces = zip(
            spans(q, k, v, cu_seqlens, keys, scale), gradient.split(lengths), output.split(lengths), strict=True
        )
        for (p, _, x, y, z), g, o in pieces:
            g, o = g.transpose(0, 1), o.transpose(0, 1)
            ds = p * (g @ z.transpose(1, 2) - (g * o).sum(-1, keepdim=True)) * scale
            found.append([d.transpose(0, 1) for d in (ds @ y, ds.transpose(1, 2) @ x, p.transpose(1, 2) @ g)])
        dq, dk, dv = (torch.cat(columns) for columns in zip(*found, strict=True))
        return dq, dk.unflatten(1, (-1, 2)).sum(2), dv.unflatten(1, (-1, 2)).sum(2)


def spans(q, k, v, cu_seqlens, keys, scale):
    """Per sequence: probabilities [heads, own, L], log-sum-exp [heads, own], and q, k, v [heads, own or L, D]."""
    whole = (q, cu_seqlens), (k.repeat_interleave(2, 1), keys), (v.repeat_interleave(2, 1), keys)
    for x, y, z in zip(*(t.transpose(0, 1).split(ends.diff().tolist(), 1) for t, ends in whole), strict=True):
        later = torch.ones(x.shape[1], y.shape[1]).triu(1 + y.shape[1] - x.shape[1]).bool()
        scores = (x @ y.transpose(1, 2) * scale).masked_fill(later, -torch.inf)
        yield scores.softmax(-1), scores.float().logsumexp(-1), x, y, z


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setitem(varlen.NEWER, "mine", Kernel)


def heads(tokens: int):
    return [torch.randn(1, n, tokens, 8, requires_grad=True) for n in (4, 2, 2)]


def attention(q, k, v, bounds, longest):
    return varlen.varlen_attention(q, k, v, bounds, longest, None, "mine") * 2


def test_it_differentiates_and_does_not_break_a_compiled_graph(kernel) -> None:
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens, longest in ((10, 6), (17, 13)):
            inputs = q, k, v = heads(tokens)
            bounds = torch.tensor([0, longest, tokens], dtype=torch.int32)
            found, wanted = (f(q, k, v, bounds, longest) for f in (compiled, attention))
            torch.testing.assert_close(found, wanted)
            assert wanted.shape == (1, tokens, 4, 8)
            for mine, theirs in zip(*(torch.autograd.grad(x.sum(), inputs) for x in (found, wanted)), strict=True):
                torch.testing.assert_close(mine, theirs)


def test_a_device_without_a_newer_kernel_has_pytorchs() -> None:
    assert varlen.attention_kernel(torch.device("cpu"), 4, 2, 8) == "fa2"


@pytest.mark.parametrize("own", [varlen.LENGTHS, varlen.OWN_LENGTHS])
def test_a_kernel_must_agree_with_pytorch(kernel, monkeypatch, own) -> None:
    class Wrong(Kernel):
        @staticmethod
        def backward(*given):
            dq, dk, dv = Kernel.backward(*given)
            return dq, dk * 1.1, dv

    monkeypatch.setitem(varlen.NEWER, "wrong", Wrong)
    right, wrong = (varlen.disagreement(name, torch.device("cpu"), 4, 2, 8, own) for name in ("mine", "wrong"))
    assert right < varlen.AGREES < wrong


def test_rows_that_several_sequences_see_get_the_sum_of_their_gradients() -> None:
    rows, layout = torch.randn(1, 2, 4, 8, requires_grad=True), shared_prompts([2, 2, 1], [(0, 1), (0, 1), (1, 0)], CPU)
    found = expand_keys(rows, layout.seen, layout.order, layout.bounds)
    torch.testing.assert_close(found, rows[:, :, [0, 1, 0, 2, 3]])
    (gradient,) = torch.autograd.grad((found * torch.tensor([1.0, 2, 3, 4, 5])[:, None]).sum(), rows)
    torch.testing.assert_close(gradient, torch.tensor([4.0, 2, 4, 5])[:, None].expand(1, 2, 4, 8))
    parts = [layout.order[a:b].tolist() for a, b in pairwise(layout.bounds.tolist())]
    assert parts == [[0, 2], [1], [3], [4]]


@pytest.mark.parametrize("own", [None, "0"])
def test_compiled_kernels_are_kept_unless_the_user_says_otherwise(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {name: f"{varlen_fa4.CACHE}_{name}" for name in ("DIR", "ENABLED")}
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    for variable in variables.values():
        monkeypatch.setenv(variable, "")  # so that it is put back
        monkeypatch.delenv(variable)
    if own is not None:
        monkeypatch.setenv(variables["ENABLED"], own)
    varlen_fa4._keep_compiled()
    assert os.environ[variables["DIR"]] == str(tmp_path / "flash_attention")
    assert os.environ[variables["ENABLED"]] == (own or "1")
    assert (tmp_path / "flash_attention").is_dir()
