"""Recurrent mixers in packed rows: found by measurement, called for sequences of about one length together."""

import copy
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.utils import _apply_to_tensors
from transformers.models.lfm2 import modeling_lfm2

from agentrl.chat.media.inputs import parameters
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
    return {name: part.packs for name, part in module.named_modules() if hasattr(part, "packs")}


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
    kinds = [type(part) for part in module.modules()]
    assert pack_where_exact(ModelHandle(module), CPU)
    assert not any("forward" in vars(part) for part in module.modules())
    assert [type(part) for part in module.modules()] == kinds


def test_attention_is_no_mixer_where_a_wrapper_copies_arguments() -> None:
    module = tiny(packed=False)
    for layer in module.model.layers:  # as FSDP's mixed precision does
        layer.register_forward_pre_hook(
            lambda _, args, given: _apply_to_tensors(torch.clone, (args, given)), with_kwargs=True
        )
    assert pack_where_exact(ModelHandle(module), CPU)
    assert mixers(module) == {}


def graphs_of(layers: int) -> int:
    """Graphs that torch.compile makes of the blocks of a model with so many convolutions."""
    kinds = CONVOLUTIONS | {"layer_types": ["conv"] * layers + ["full_attention"], "num_hidden_layers": layers + 1}
    model, graphs = ModelHandle(tiny("lfm2", packed=False, **kinds)), []
    assert pack_where_exact(model, CPU)
    torch._dynamo.reset()

    def backend(graph, _):
        graphs.append(graph)
        return graph

    for _, block in model.blocks():
        block._compiled_call_impl = torch.compile(block._call_impl, dynamic=True, backend=backend)
    with torch.no_grad():
        TokenLogprobs(model)(random_batch([5, 30]))
    return len(graphs)


def test_mixers_of_one_kind_share_their_compiled_code() -> None:
    assert graphs_of(2) == graphs_of(5) > 0


def convolve(x, weight, bias, *, activation, cu_seqlens):
    """A row's causal convolution within its sequences, as flash-linear-attention computes it."""
    parts = [
        F.conv1d(F.pad(part.transpose(1, 2), (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=len(weight))
        for part in x.split(cu_seqlens.diff().tolist(), dim=1)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def test_a_kernel_that_reads_bounds_computes_the_whole_row(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = ModuleType("fla.modules.causal_conv1d")
    package.causal_conv1d = convolve
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", modeling_lfm2.causal_conv1d_fn)
    batch, alone, packed = random_batch([5, 30, 1, 12, 50, 31]), hybrid(), hybrid()
    use_bounds(packed.modules())
    assert pack_where_exact(ModelHandle(packed), CPU)
    hands_on = "kwargs" in parameters(modeling_lfm2.Lfm2ShortConv)  # bounds, since transformers 5.22
    assert mixers(packed) == {"model.layers.0.conv": hands_on}
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
