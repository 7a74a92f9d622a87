"""Recurrent mixers in packed rows: found by measurement, called for sequences of about one length together."""

import copy
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from transformers.models.lfm2 import modeling_lfm2

from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.mixers import use_bounds
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.model.sequences import run_apart
from tests.training.tiny import CPU, random_batch, tiny

CONVOLUTIONS = {"layer_types": ["conv", "full_attention"], "block_dim": 64, "conv_dim": 64}


def hybrid():
    return tiny("lfm2", packed=False, **CONVOLUTIONS)


def mixers(module) -> dict[str, bool]:
    """Mixers by name, and whether each takes a row with its bounds."""
    found = {name: vars(part).get("forward") for name, part in module.named_modules()}
    return {name: forward.args[1] for name, forward in found.items() if forward is not None}


def gradients(module, batch) -> torch.Tensor:
    module.zero_grad()
    TokenLogprobs(module)(batch)[0].sum().backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def test_a_mixer_is_found_and_gradients_are_those_of_sequences_alone() -> None:
    batch, alone, packed = random_batch([5, 30, 1, 12, 50, 31]), hybrid(), hybrid()
    assert pack_where_exact(ModelHandle(packed), CPU)
    assert mixers(packed) == {"model.layers.0.conv": False}
    exact = gradients(alone, batch)
    assert (gradients(packed, batch) - exact).norm() < 1e-5 * exact.norm()


def test_a_copy_computes_with_its_own_weights() -> None:
    module, batch = hybrid(), random_batch([5, 30])
    assert pack_where_exact(ModelHandle(module), CPU)
    other = copy.deepcopy(module)
    with torch.no_grad():
        before = TokenLogprobs(module)(batch)[0]
        other.model.layers[0].conv.in_proj.weight.zero_()
        assert torch.equal(TokenLogprobs(module)(batch)[0], before)
        assert not torch.equal(TokenLogprobs(other)(batch)[0], before)


def test_a_model_without_mixers_keeps_its_forwards() -> None:
    module = tiny(packed=False)
    assert pack_where_exact(ModelHandle(module), CPU)
    assert not any("forward" in vars(part) for part in module.modules())
    assert not module.base_model._forward_pre_hooks


def convolve(x, weight, bias, *, activation, cu_seqlens):
    """A row's causal convolution within its sequences, as flash-linear-attention computes it."""
    parts = [
        F.conv1d(F.pad(part.transpose(1, 2), (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=len(weight))
        for part in x.split(cu_seqlens.diff().tolist(), dim=1)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def test_a_kernel_that_reads_bounds_computes_the_whole_row(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("fla.modules.causal_conv1d")
    package.causal_conv1d = convolve
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", modeling_lfm2.causal_conv1d_fn)
    batch, alone, packed = random_batch([5, 30, 1, 12, 50, 31]), hybrid(), hybrid()
    use_bounds(packed.modules())
    assert pack_where_exact(ModelHandle(packed), CPU)
    assert mixers(packed) == {"model.layers.0.conv": True}
    exact = gradients(alone, batch)
    assert (gradients(packed, batch) - exact).norm() < 1e-5 * exact.norm()
    for start in batch.cu_seqlens[:-1]:
        batch.ids[start : start + 2] = 7  # one prompt for all
    exact = gradients(alone, batch)
    assert (gradients(packed, batch.share_prompts()) - exact).norm() < 1e-5 * exact.norm()


def test_sequences_of_about_one_length_are_one_call() -> None:
    calls, column = [], torch.randn(100 + 97 + 17 + 3 + 90, 2)

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(x.shape[0])
        return (x.cumsum(1),)

    lengths = [100, 97, 17, 3, 90]
    (found,) = run_apart(run, [column], [lengths])
    torch.testing.assert_close(found, torch.cat([part.cumsum(0) for part in column.split(lengths)]))
    assert sorted(calls) == [1, 1, 3]
