"""What passes cost, counted by hand; what a meter makes of it."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from agentrl.config.schema import Actor
from agentrl.training import Batch, PolicyActor
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.perf.flops import ModelFlops, model_flops
from agentrl.training.perf.meter import Meter
from tests.training.mixtures import mixture
from tests.training.tiny import CPU, SIZES, lora, random_batch, tiny

HIDDEN, INNER, LAYERS, VOCABULARY = (
    SIZES[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
)
ATTENTION = HIDDEN * 64 * 2 + HIDDEN * 32 * 2  # 4 heads of 16 ask and answer, 2 hold keys and values


def cost_of(module: nn.Module) -> ModelFlops:
    model = ModelHandle(module)
    return model_flops(model.whole_shapes, model.config)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_a_token_meets(tied: bool) -> None:
    cost = cost_of(tiny("qwen3", tie_word_embeddings=tied))
    assert cost == ModelFlops(LAYERS * (ATTENTION + 3 * HIDDEN * INNER), VOCABULARY * HIDDEN, LAYERS * 64)


def test_of_experts_only_the_chosen_count() -> None:
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    cost = cost_of(tiny("qwen3_moe", **more))
    experts = 2 * 3 * HIDDEN * 32
    assert cost.backbone == LAYERS * (ATTENTION + experts + HIDDEN * 4)


EXACT = ("qwen3_moe", "mixtral", "gpt_oss", "glm4_moe", "minimax_m2", "deepseek_v3", "ernie4_5_moe", "granitemoe")


@pytest.mark.parametrize("kind", EXACT)
def test_torch_counts_the_same(kind: str) -> None:
    module, tokens = mixture(kind, experts_implementation="eager"), 24
    module.set_attn_implementation("eager")
    cost = cost_of(module)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(input_ids=torch.arange(tokens)[None] + 3, use_cache=False)
    ours = cost.forward([tokens], tokens) + 2 * cost.attention * tokens**2  # torch counts both halves of a square
    assert counter.get_total_flops() == pytest.approx(ours, rel=2e-3)  # rotary tables are a product too


def test_recurrent_layers_have_no_square() -> None:
    assert cost_of(mixture("qwen3_5_moe_text")).attention == 1 * 4 * 8
    assert cost_of(mixture("lfm2_moe")).attention == 1 * 4 * 8
    assert cost_of(mixture("nemotron_h")).attention == 1 * 4 * 8
    assert cost_of(mixture("deepseek_v3")).attention == 2 * 4 * (16 + 8) / 2


def test_passes() -> None:
    cost = ModelFlops(backbone=1000, head=100, attention=10)
    assert cost.forward([3, 4], scored=2) == 2 * 1000 * 7 + 2 * 100 * 2 + 2 * 10 * 25
    assert cost.update([3, 4], scored=2) == 3 * cost.forward([3, 4], scored=2)
    assert cost_of(lora(tiny())).update([3], 1) == 2 * cost_of(tiny()).forward([3], 1)


def test_passes_are_counted_where_they_run() -> None:
    batch = random_batch([4, 5, 6, 7])
    actor = PolicyActor(tiny(), actor=Actor(), temperature=1.0, device=CPU, total_steps=3)
    once = cost_of(tiny()).forward(batch.lengths, int(batch.mask.sum()))
    actor.logprobs(batch)
    assert actor.model.flops == pytest.approx(once)
    actor.update(batch)
    assert actor.model.flops == pytest.approx(4 * once)
    batch.advantages = torch.zeros_like(batch.advantages)  # sequences without a gradient have no backward pass
    actor.update(batch)
    assert actor.model.flops == pytest.approx(5 * once)


def test_a_prompt_that_is_computed_once_counts_once() -> None:
    ids, mask = torch.arange(3, 13).repeat(2), (torch.arange(20) % 10) >= 6
    batch = Batch.of(ids, mask, [10, 10])
    actor = PolicyActor(tiny(), actor=Actor(), temperature=1.0, device=CPU, total_steps=3, shares=True)
    actor.logprobs(batch)
    assert actor.model.flops == pytest.approx(cost_of(tiny()).forward([10, 10], 8, [6]))


def test_a_meter_divides_by_time_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, flops = iter([10.0, 12.0]), iter([1e12, 5e12])
    monkeypatch.setattr(Ranks, "sum", lambda ranks, own: 2 * own)  # the other rank computes as much
    meter = Meter(CPU, lambda: next(flops), Ranks(world=2), clock=lambda: next(ticks))
    with meter.phase("update"):
        pass
    assert meter.take() == {"perf/update_tflops_per_gpu": 2.0}  # nobody knows a CPU's peak
    assert meter.take() == {}


def test_the_parts_of_a_phase_are_one() -> None:
    ticks, flops = iter([0.0, 1.0, 5.0, 6.0]), iter([0.0, 3e12, 4e12, 5e12])
    meter = Meter(CPU, lambda: next(flops), clock=lambda: next(ticks))
    for _ in range(2):
        with meter.phase("update"):
            pass
    assert meter.take() == {"perf/update_tflops_per_gpu": 2.0}
