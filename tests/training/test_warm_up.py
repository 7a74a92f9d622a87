"""Passes are compiled before a run needs them, and nothing of the run changes by it."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from agentrl.training.checkpoint.rng import rng_state
from agentrl.training.model.attention import choosing as attention
from agentrl.training.model.head.logprobs import TokenLogprobs, score_tokens
from agentrl.training.model.sizes import sizes_of
from agentrl.training.perf.compiled_block import Compiled
from agentrl.training.perf.compiling import compiled_blocks, representative, uncompiled
from agentrl.training.update.warm_up import MOST_TOKENS, dummy_batch, tokens_within, warm_up
from tests.training.test_actor import actor_of
from tests.training.tiny import CPU, lora, random_batch, tiny

pytestmark = pytest.mark.integration

LAYERS = 3


def never() -> bool:
    return False


class Compiler:
    """A backend of torch.compile that counts its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


def compiled(module: nn.Module, compiler: Compiler) -> nn.Module:
    for part in module.modules():
        if type(part).__name__ == "LlamaDecoderLayer":
            part.compile(dynamic=True, backend=compiler)
    return module


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of attention for all sequences; the CPU's has a call for each, compiled for their number."""
    torch._dynamo.reset()
    monkeypatch.setattr(attention, "varlen_fits", lambda query, window: True)
    monkeypatch.setattr(attention, "varlen_attention", masked_attention)


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    longest: int,
    scaling: float | None,
    kernel: str,
    keys: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    (asking, own), (asked, other) = _places(bounds, q.shape[2]), _places(bounds if keys is None else keys, k.shape[2])
    # Queries are of the last tokens of a sequence: places count from its end.
    seen = (asking[:, None] == asked) & (own[:, None] >= other) & (own[:, None] - other < longest)
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2)


def _places(bounds: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Sequence of each token, and its place counted from the sequence's end."""
    place = torch.arange(tokens)
    owner = torch.bucketize(place, bounds[1:], right=True)
    return owner, place - bounds[1:][owner]


@pytest.mark.parametrize(
    ("wrap", "shares"), [(lambda module: module, False), (lambda module: module, True), (lora, False)]
)
def test_an_update_after_it_compiles_nothing_and_takes_the_same_step(
    wrap: Callable[[nn.Module], nn.Module], shares: bool
) -> None:
    compiler = Compiler()
    module = wrap(tiny(num_hidden_layers=LAYERS, attention_dropout=0.1))
    plain = actor_of(copy.deepcopy(module))
    warm = actor_of(compiled(module, compiler), ppo_max_token_len_per_gpu=40)
    warm.micro_batching = replace(warm.micro_batching, shares=shares)
    before, random = copy.deepcopy(warm.state_dict()), rng_state()
    warm_up(warm, longest=8, scores_apart=True, should_stop=never)
    graphs = compiler.graphs
    assert graphs > 0
    assert not module.training
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(rng_state()["torch"], random["torch"])
    for name, chunk in warm.state_dict()["parameters"].items():
        assert torch.equal(chunk.values, before["parameters"][name].values)
    batch = random_batch([9, 5, 12, 7, 6])
    batch = batch.select([0, 1, 2, 0, 3, 4]) if shares else batch
    torch.manual_seed(3)
    expected = plain.update(batch)
    torch.manual_seed(3)
    assert warm.update(batch)["actor/pg_loss"] == pytest.approx(expected["actor/pg_loss"], abs=1e-6)
    warm.logprobs(batch)
    assert compiler.graphs == graphs


@pytest.mark.parametrize("kinds", [0, 1, 2])
def test_it_ends_when_nothing_waits_for_it(kinds: int) -> None:
    compiler = Compiler()
    module = compiled(tiny(num_hidden_layers=LAYERS), compiler)
    actor, graphs = actor_of(module), []

    def enough() -> bool:
        graphs.append(compiler.graphs)
        return len(graphs) > kinds

    warm_up(actor, longest=8, scores_apart=True, should_stop=enough)
    assert len(graphs) == kinds + 1
    assert graphs == sorted(set(graphs))
    assert compiler.graphs == graphs[-1]
    assert not module.training


def test_without_compiled_blocks_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = actor_of(tiny())

    def fails(loss: Tensor) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(Tensor, "backward", fails)
    warm_up(actor, longest=8, scores_apart=True, should_stop=never)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_it_ends_no_run(error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Out of memory beside a server, or a backward pass that cannot be compiled."""
    module = compiled(tiny(num_hidden_layers=LAYERS), Compiler())
    actor, random = actor_of(module), rng_state()
    state = actor.model.compiled = Compiled()

    backward = Tensor.backward

    def fails(loss: Tensor) -> None:
        backward(loss)
        raise error("no room")

    monkeypatch.setattr(Tensor, "backward", fails)
    warm_up(actor, longest=8, scores_apart=True, should_stop=never)
    assert not module.training
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(rng_state()["torch"], random["torch"])
    assert state.works == (error is torch.OutOfMemoryError)
    assert ("first update compiles" if state.works else "runs uncompiled: no room") in caplog.text


def test_only_the_first_blocks_run() -> None:
    module = compiled(tiny(num_hidden_layers=LAYERS), Compiler())
    ran: list[int] = []
    layers = module.model.layers
    for i, layer in enumerate(layers):
        layer._compiled_call_impl = lambda *args, i=i, call=layer._call_impl, **named: (
            ran.append(i),
            call(*args, **named),
        )[1]
    score = TokenLogprobs(module)
    ran.clear()
    with representative(compiled_blocks(module)):
        score(random_batch([5, 4]))
    assert ran == [0, 1]
    score(random_batch([5, 4]))
    assert ran == [0, 1, *range(LAYERS)]


def test_the_probe_of_an_engine_compiles_nothing() -> None:
    compiler = Compiler()
    module = compiled(tiny(), compiler)
    with uncompiled():
        alone = score_tokens(module, [5, 6, 7], CPU)
    assert compiler.graphs == 0
    torch.testing.assert_close(score_tokens(module, [5, 6, 7], CPU), alone)
    assert compiler.graphs > 0


def test_passes_leave_a_small_gpu_to_the_server() -> None:
    sizes = sizes_of(LlamaConfig(hidden_size=4096, intermediate_size=14336))  # an 8B model
    small, large = (tokens_within(gigabytes << 30, sizes) for gigabytes in (24, 141))
    assert 1000 < small < 2500
    assert large > 8000


@pytest.mark.parametrize(("tokens", "longest"), [(16, 8), (40, 8), (2048, 1000), (10**6, 4096), (10**6, 10**6)])
def test_the_dummy_batch_keeps_its_limits(tokens: int, longest: int) -> None:
    batch = dummy_batch(tokens, longest)
    assert min(tokens, MOST_TOKENS) / 3 < batch.num_tokens <= min(tokens, MOST_TOKENS)
    assert max(batch.lengths) <= longest
    assert batch.num_sequences > 1
    assert len({batch.num_tokens, max(batch.lengths), batch.num_sequences + 1}) == 3
    assert batch.mask.any()
    assert not batch.mask[batch.cu_seqlens[:-1].long()].any()
