"""The load of experts is counted as routers choose; its loss and its bias even it out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from agentrl.config.schema import Actor
from agentrl.config.schema.actor import Optim, Router
from agentrl.core.errors import UserError
from agentrl.training import Batch, PolicyActor
from agentrl.training.model.experts import balance_loss, expert_layers, routers_of, tokens_per_expert
from agentrl.training.model.export import save_pretrained
from agentrl.training.model.handle import ModelHandle
from agentrl.training.update.expert_load import freeze_routers
from tests.training.mixtures import FAMILIES, mixture
from tests.training.tiny import CPU, lora, random_batch, tiny

BATCH = [4, 5, 6, 7]
NAMES = ("max_load", "max_load_worst", "dead_experts")


def actor_of(module: torch.nn.Module, **router: Any) -> PolicyActor:
    settings = Actor(router=Router(**router), optim=Optim(lr=1e-3, weight_decay=0.0))
    return PolicyActor(module, actor=settings, temperature=1.0, device=CPU, total_steps=9)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_counted(kind: str) -> None:
    module = mixture(kind)
    assert len(routers_of(module)) == len(expert_layers(module)) > 0
    metrics = actor_of(module).update(random_batch(BATCH))
    assert 1.0 <= metrics["router/max_load"] <= metrics["router/max_load_worst"] <= 3.0  # 6 experts, 2 for each token
    assert 0.0 <= metrics["router/dead_experts"] < 0.5


@pytest.mark.parametrize("kind", ["mixtral", "llama4_text"])
def test_counts_equal_the_router(kind: str) -> None:
    module, found = mixture(kind), []
    load = actor_of(module).load
    for router, index in routers_of(module):
        router.register_forward_hook(lambda _, __, made, i=index: found.append(made[i].flatten(0, -2)))
    batch = random_batch([9])
    load.begin_pass(batch.mask)
    module(input_ids=batch.ids[None], use_cache=False)
    wanted = torch.stack([torch.bincount(x.topk(2).indices.flatten(), minlength=6) for x in found])
    assert torch.equal(load._counts, wanted)


def test_a_pass_without_gradient_does_not_count() -> None:
    actor, batch = actor_of(mixture("qwen3_moe")), random_batch(BATCH)
    actor.logprobs(batch)
    assert not actor.load._counts.any()
    metrics = actor.update(batch)
    assert set(NAMES) <= {name.removeprefix("router/") for name in metrics}
    assert not actor.load._totals.any()


def test_a_dense_model_has_no_experts() -> None:
    assert not [name for name in actor_of(tiny()).update(random_batch(BATCH)) if name.startswith("router/")]
    for key in ("aux_loss_coef", "bias_update"):
        with pytest.raises(UserError, match=rf"actor.router.{key}: a LlamaForCausalLM has no .*; remove it"):
            actor_of(tiny(), **{key: 0.1})
    with pytest.raises(UserError, match=r"actor.router.freeze: a LlamaForCausalLM has no router; remove it"):
        freeze_routers(ModelHandle(tiny()))
    with pytest.raises(UserError, match="actor.router.bias_update: a MixtralForCausalLM has no"):
        actor_of(mixture("mixtral"), bias_update=0.1)


def test_an_adapter_does_not_have_the_bias() -> None:
    for module, router in ((lora(mixture("deepseek_v3")), {}), (mixture("gpt_oss"), {"freeze": True})):
        with pytest.raises(UserError, match="actor.router.bias_update: adapters do not have the bias"):
            actor_of(module, bias_update=0.1, **router)


def test_the_loss_is_that_of_transformers() -> None:
    logits = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
    counts = tokens_per_expert((logits, logits.topk(2).indices, None), 6)
    torch.testing.assert_close(balance_loss(logits, counts) / 11, load_balancing_loss_func((logits,), 6, 2))
    assert balance_loss(torch.eye(6), torch.ones(6)) == pytest.approx(6.0)


@pytest.mark.parametrize("kind", ["qwen3_moe", "llama4_text", "deepseek_v3"])
def test_the_loss_evens_the_load(kind: str) -> None:
    module, batch = mixture(kind), random_batch(BATCH)
    batch.advantages = torch.zeros_like(batch.advantages)
    actor = actor_of(module, aux_loss_coef=1.0)
    losses = [actor.update(batch)["router/aux_loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.01


def test_micro_batches_share_the_loss() -> None:
    batch, settings = random_batch([6, 6, 6, 6]), Actor(router=Router(aux_loss_coef=1.0))
    settings.ppo_micro_batch_size_per_gpu = 1

    def loss(part: Batch) -> float:
        actor = PolicyActor(mixture("qwen3_moe"), actor=settings, temperature=1.0, device=CPU, total_steps=1)
        return actor.update(part)["router/aux_loss"]

    assert loss(batch) == pytest.approx(sum(loss(batch.select([i])) for i in range(4)) / 4)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss", "llama4_text"])
def test_frozen_routers_stay(kind: str) -> None:
    module = mixture(kind)
    freeze_routers(ModelHandle(module))
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    actor_of(module).update(random_batch(BATCH))
    same = {name for name, p in module.named_parameters() if torch.equal(p, before[name])}
    routers = {id(p) for router, _ in routers_of(module) for p in router.parameters()}
    assert same == {name for name, p in module.named_parameters() if id(p) in routers}


BIAS = {
    "deepseek_v3": "model.layers.0.mlp.gate.e_score_correction_bias",
    "minimax_m2": "model.layers.1.mlp.e_score_correction_bias",
    "lfm2_moe": "model.layers.1.feed_forward.expert_bias",
    "nemotron_h": "model.layers.1.mixer.gate.e_score_correction_bias",
    "ernie4_5_moe": "model.layers.1.mlp.gate.moe_statics.e_score_correction_bias",
    "afmoe": "model.layers.1.mlp.expert_bias",
}


@pytest.mark.parametrize("kind", BIAS)
def test_the_bias_moves_to_idle_experts(kind: str) -> None:
    module = mixture(kind)
    actor, seen = actor_of(module, bias_update=0.25), []
    name = BIAS[kind]
    step = actor.load.step
    layer = next(i for i, n in enumerate(expert_layers(module)) if name.startswith(n.rpartition(".")[0]))
    actor.load.step = lambda: (seen.append(actor.load._counts[layer].clone()), step())  # type: ignore[method-assign]
    before = module.state_dict()[name].flatten().clone()
    actor.update(random_batch(BATCH))
    moved = module.state_dict()[name].flatten() - before
    torch.testing.assert_close(moved, 0.25 * (seen[0].float().mean() - seen[0]).sign())


def test_a_moved_bias_is_saved_and_exported(tmp_path: Path) -> None:
    module, name = mixture("deepseek_v3"), BIAS["deepseek_v3"]
    actor = actor_of(module, bias_update=0.25)
    actor.update(random_batch(BATCH))
    moved, state = module.state_dict()[name].clone(), actor.state_dict()
    assert moved.any()
    again = mixture("deepseek_v3")
    actor_of(again).load_state_dict({part: state[part] for part in ("parameters", "fixed")})
    assert torch.equal(again.state_dict()[name], moved)
    save_pretrained(module, SimpleNamespace(save_pretrained=lambda _: None), tmp_path)  # type: ignore[arg-type]
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()[name], moved)
