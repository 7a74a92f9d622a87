"""Compiled blocks: the same numbers, none compiled again for a length, and a fallback where compiling fails."""

from functools import partial

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch._functorch.compilers import nop

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.perf.compiled_block import backward, compile_blocks, compiles
from agentrl.training.perf.compiling import uncompiled
from tests.training.tiny import CPU, random_batch, tiny

pytestmark = pytest.mark.integration

# One sequence each: attention is a call per sequence on a CPU, and each number of them another graph.
BATCHES = [random_batch([n]) for n in (40, 70)]


@pytest.fixture
def counter(monkeypatch):
    torch._dynamo.reset()
    counted = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    return counted


def compiled_model(**fields) -> ModelHandle:
    model = ModelHandle(tiny(**fields))
    model.compiled = compile_blocks(block for _, block in model.blocks())
    return model


def policy_of(module) -> PolicyActor:
    actor = Actor(optim=Optim(lr=1e-2))
    return PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=9)


def test_compiled_blocks_compute_the_same(counter) -> None:
    plain, compiled = policy_of(tiny(num_hidden_layers=1)), policy_of(compiled_model(num_hidden_layers=1))
    with uncompiled():
        compiled.logprobs(BATCHES[0])
    assert counter.frame_count == 0  # nor did the probe of the output layer compile anything
    graphs = []
    for batch in BATCHES:
        assert compiled.update(batch) == pytest.approx(plain.update(batch), rel=1e-4)
        torch.testing.assert_close(compiled.logprobs(batch)[0], plain.logprobs(batch)[0], rtol=1e-4, atol=1e-4)
        graphs.append(counter.frame_count)
    assert compiled.model.runs_compiled
    assert graphs[0] == graphs[-1] > 0


def test_a_block_that_cannot_be_compiled_runs_as_it_is(monkeypatch, caplog) -> None:
    torch._dynamo.reset()

    def broken(graph, inputs):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    model = compiled_model()
    found = policy_of(model).update(BATCHES[0])
    assert found == pytest.approx(policy_of(tiny()).update(BATCHES[0]))
    assert not model.runs_compiled
    assert caplog.text.count("runs uncompiled") == 1


def test_a_backward_pass_that_cannot_be_compiled_is_taken_again(monkeypatch, caplog) -> None:
    torch._dynamo.reset()

    def broken(graph, inputs):
        raise RuntimeError("no compiler for gradients")

    backend = aot_autograd(fw_compiler=nop, bw_compiler=broken)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model = compiled_model()
    policy, plain = policy_of(model), policy_of(tiny())
    found = policy.update(BATCHES[0])
    assert found == pytest.approx(plain.update(BATCHES[0]))
    assert caplog.text.count("runs uncompiled: no compiler for gradients") == 1
    for mine, theirs in zip(model.module.parameters(), plain.model.module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_another_error_of_a_backward_pass_is_raised() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backward(None, weight.sum(), ALONE)


def test_a_gpu_compiles_by_default() -> None:
    assert [compiles(None, torch.device(kind)) for kind in ("cuda", "cpu")] == [True, False]
    assert [compiles(chosen, torch.device("cuda")) for chosen in (True, False)] == [True, False]
    assert compiles(True, CPU)
    assert not compiles(None, torch.device("cuda"), fused=True)
