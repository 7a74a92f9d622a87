"""Routing replay: given experts take the place of a router's own choice, in every pass that a run makes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from agentrl.config.checks.algorithm import routing_replay
from agentrl.config.derived import records_experts
from agentrl.config.schema import Actor, Algorithm, Config, Optim, Rollout, RolloutCorrection
from agentrl.config.schema.actor import RouterReplay
from agentrl.core.errors import UserError
from agentrl.training import Batch, PolicyActor, pack_ledgers
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.routing import Routing, routing_in
from agentrl.training.model.routing_probe import routing_of
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.micro_batches import MicroBatching
from agentrl.trajectory.ledger import Ledger
from tests.training.tiny import CPU, ledger, lora, random_batch, tiny

FIELDS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
KEY = "actor.router_replay.mode=R3"


def moe(**fields: Any) -> Any:
    return tiny("qwen3_moe", **FIELDS | fields)


def routed(module: Any) -> tuple[ModelHandle, Routing]:
    handle = ModelHandle.of(module)
    handle.routing = routing_of(handle, CPU, KEY)
    return handle, handle.routing


def actor_of(handle: ModelHandle, **settings: Any) -> PolicyActor:
    actor = Actor(**{"optim": Optim(lr=1e-2)} | settings)
    return PolicyActor(handle, actor=actor, temperature=1.0, device=CPU, total_steps=9)


def random_experts(tokens: int, layers: int = 2, *, experts: int = 8, k: int = 2, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, layers, experts, generator=draw).argsort(-1)[..., :k].to(torch.uint8)


def checkpointed(module: Any) -> Any:
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module


MODELS: dict[str, Callable[[], Any]] = {
    "packed": moe,
    "alone": lambda: moe(packed=False),
    "checkpointed": lambda: checkpointed(moe()),
    "checkpointed alone": lambda: checkpointed(moe(packed=False)),
    "lora": lambda: lora(moe()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_is_replayed_bit_for_bit_after_a_change_of_weights(name: str) -> None:
    handle, routing = routed(MODELS[name]())
    actor, batch = actor_of(handle), random_batch([7, 12, 4, 9])
    before = actor.logprobs(batch)[0]
    recorded = batch.experts.clone()
    assert torch.equal(actor.logprobs(batch)[0], before)
    assert torch.equal(batch.experts, recorded)
    with torch.no_grad():
        for router in routing.routers.values():
            router.weight.normal_()
    routing.take_metrics()
    actor.logprobs(batch)
    assert torch.equal(batch.experts, recorded)
    metrics = routing.take_metrics()
    assert metrics["routing/replayed"] == 1.0
    assert metrics["routing/differs"] > 0.3
    batch.experts = None
    actor.logprobs(batch)
    assert not torch.equal(batch.experts, recorded)


@pytest.mark.parametrize("name", ["packed", "alone", "lora"])
def test_gradients_with_checkpoints_are_those_without(name: str) -> None:
    gradients = []
    for wrap in (lambda module: module, checkpointed):
        handle, _ = routed(wrap(MODELS[name]()))
        actor, batch = actor_of(handle), random_batch([7, 12, 4, 9])
        batch.experts = random_experts(batch.num_tokens)
        with actor.training():
            logprobs, *_ = actor.score(batch)
            logprobs.sum().backward()
        gradients.append({n: p.grad for n, p in handle.module.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.allclose(gradients[0][n], gradients[1][n], atol=1e-6) for n in gradients[0])
    assert name == "lora" or any(n.endswith("mlp.gate.weight") and g.abs().max() > 0 for n, g in gradients[0].items())


def test_tokens_without_known_routing_are_routed_as_always() -> None:
    handle, routing = routed(moe())
    actor, batch = actor_of(handle), random_batch([7, 12, 4, 9])
    plain = actor.logprobs(batch)[0]
    own, half = batch.experts.clone(), int(batch.cu_seqlens[2])
    batch.experts = random_experts(batch.num_tokens)
    batch.experts[half:] = own[half:]
    wanted, whole = actor.logprobs(batch)[0], batch.experts.clone()
    batch.experts[half:] = 255
    routing.take_metrics()
    assert torch.equal(actor.logprobs(batch)[0], wanted)
    assert torch.equal(batch.experts, whole)  # all that tokens met is there for the update
    torch.testing.assert_close(wanted[half:], plain[half:])
    assert (wanted[:half] - plain[:half]).abs().max() > 0.1
    assert routing.take_metrics()["routing/replayed"] == pytest.approx((half - 2) / (batch.num_tokens - 4))


def test_rows_of_all_layers_are_those_of_the_layers_with_experts() -> None:
    handle, routing = routed(moe(num_hidden_layers=3, mlp_only_layers=[1]))
    assert routing.layers.tolist() == [0, 2]
    actor, batch = actor_of(handle), random_batch([7, 12])
    batch.experts = random_experts(batch.num_tokens)
    wanted = actor.logprobs(batch)[0]
    wide = torch.zeros(batch.num_tokens, 3, 2, dtype=torch.uint8)
    wide[:, [0, 2]] = batch.experts
    batch.experts = wide
    assert torch.equal(actor.logprobs(batch)[0], wanted)
    batch.experts = random_experts(batch.num_tokens, k=3)
    with pytest.raises(UserError, match=r"returned \[2, 3\] experts a token, the model's 2 routers choose 2 experts"):
        actor.logprobs(batch)


def test_shared_prompts_replay_the_same() -> None:
    handle, _ = routed(moe())
    actor = actor_of(handle)
    ledgers = []
    for seed in range(3):
        made = Ledger()
        made.append_prompt(list(range(5, 12)))
        made.append_model(ledger(9, seed=seed).ids[3:], [-1.0] * 9, turn=0, version=0)
        ledgers.append(made)
    batch = pack_ledgers(ledgers, group=[0, 0, 0])
    prompt = random_experts(7)
    batch.experts = torch.cat([part for i in range(3) for part in (prompt, random_experts(9, seed=i + 1))])
    wanted, given = actor.logprobs(batch)[0], batch.experts.clone()
    actor.micro_batching = MicroBatching(shares=True)
    torch.testing.assert_close(actor.logprobs(batch)[0], wanted)
    assert torch.equal(batch.experts, given)


def test_a_reference_routes_by_itself() -> None:
    handle, _ = routed(lora(moe()))
    batch = random_batch([7, 12])
    reference = Reference(handle, temperature=1.0, micro_batching=MicroBatching(), device=CPU)
    wanted = reference.logprobs(batch)
    assert batch.experts is None
    batch.experts = random_experts(batch.num_tokens)
    assert torch.equal(reference.logprobs(batch), wanted)
    assert handle.routing is not None


def test_several_optimizer_steps_replay_the_first_routing() -> None:
    handle, _ = routed(moe())
    actor, batch = actor_of(handle, ppo_mini_batch_size=1, ppo_epochs=2, optim=Optim(lr=0.3)), random_batch([7, 12, 9])
    batch.group = torch.arange(3)
    batch.advantages = torch.randn(batch.num_tokens) * batch.mask
    batch.old_logprobs = actor.logprobs(batch)[0]
    metrics = actor.update(batch)
    assert metrics["routing/replayed"] == 1.0
    assert metrics["routing/differs"] > 0.0


def test_columns_reach_ranks_and_micro_batches() -> None:
    batch = random_batch([7, 12, 4])
    batch.experts = random_experts(batch.num_tokens)
    first, _, third = batch.experts.split(batch.lengths)
    assert torch.equal(batch.select([2, 0]).experts, torch.cat([third, first]))
    assert batch.dummy().experts.shape == (2, 2, 2)


@pytest.mark.integration
def test_compiled_blocks_replay_without_a_graph_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from torch._dynamo.testing import CompileCounter

    from agentrl.training.perf.compiled_block import compile_blocks

    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    handle, _ = routed(moe(num_hidden_layers=12))
    handle.base.set_experts_implementation("grouped_mm")
    batch = random_batch([40])
    batch.experts = random_experts(batch.num_tokens, 12)
    actor = actor_of(handle)
    wanted = actor.logprobs(batch)[0]
    handle.compiled = compile_blocks(block for _, block in handle.blocks())
    given = batch.experts.clone()
    torch.testing.assert_close(actor.logprobs(batch)[0], wanted)
    assert torch.equal(batch.experts, given)
    few = counter.frame_count
    longer = random_batch([70])
    longer.experts = random_experts(longer.num_tokens, 12, seed=1)
    actor.logprobs(longer)
    assert counter.frame_count == few
    assert handle.compiled.works


REFUSED = {
    "phimoe": "no router is found that chooses by topk",
    "qwen3": "no router is found that chooses by topk",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_cannot_replay_is_refused(kind: str) -> None:
    module = tiny(kind, **FIELDS)
    with pytest.raises(UserError, match=REFUSED[kind]):
        routing_of(ModelHandle.of(module), CPU, KEY)
    assert routing_in(module) is None


def test_nothing_is_recorded_for_r2_in_bypass_mode() -> None:
    bypassed = Algorithm(rollout_correction=RolloutCorrection(bypass_mode=True))
    with pytest.raises(UserError, match="set R3"):
        routing_replay(Actor(router_replay=RouterReplay(mode="R2")), bypassed)
    routing_replay(Actor(router_replay=RouterReplay(mode="R3")), bypassed)


@pytest.mark.parametrize(
    ("mode", "chosen", "records"),
    [("R3", False, True), ("R2", False, False), ("disabled", True, True), ("disabled", False, False)],
)
def test_the_engine_records_for_r3(mode: str, chosen: bool, records: bool) -> None:
    actor, rollout = Actor(router_replay=RouterReplay(mode=mode)), Rollout(enable_rollout_routing_replay=chosen)
    assert records_experts(Config(actor=actor, rollout=rollout)) is records


def test_a_router_of_other_code_is_found_out() -> None:
    module = moe()
    gate = module.model.layers[1].mlp.gate
    gate.forward = gate.forward  # of the object: it hides that of its class
    with pytest.raises(UserError, match="given experts do not take the place of a qwen3_moe model"):
        routing_of(ModelHandle.of(module), CPU, KEY)


SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "n_shared_experts": 1,
    "shared_expert_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "n_groups": 2,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "first_k_dense_replace": 0,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_intermediate_size": 16,
    "max_position_embeddings": 128,
}
FAMILIES = [
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
    "mixtral",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v4",
    "glm4_moe",
    "minimax_m2",
    "nemotron_h",
    "olmoe",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "dots1",
    "granitemoe",
    "granitemoehybrid",
    "solar_open",
    "hy_v3",
    "exaone_moe",
    "afmoe",
    "cohere2_moe",
    "laguna",
    "mimo_v2_flash",
    "llama4_text",
    "flex_olmo",
    "minimax",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_families_replay(kind: str) -> None:
    own = CONFIG_MAPPING[kind]()
    fields = {name: value for name, value in SMALL.items() if hasattr(own, name)}
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(kinds := getattr(own, name, None), list) and kinds:
            fields[name] = ([*dict.fromkeys(kinds)] * 2)[: max(2, len(set(kinds)))]
            fields["num_hidden_layers"] = len(fields[name])
    if "kv_lora_rank" not in fields:
        fields |= {"head_dim": 8, "num_key_value_heads": 2}
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(type(own)(**fields)).float().eval()
    for parameter in module.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    assert routed(module)[1].width == 2


def test_ledgers_become_one_column() -> None:
    known, unknown = ledger(4), ledger(3)
    known.experts = [np.arange(16, dtype=np.uint8).reshape(4, 2, 2), np.full((2, 2, 2), 7, np.uint8)]
    batch: Batch = pack_ledgers([known, unknown])
    assert batch.experts.shape == (13, 2, 2)
    assert batch.experts[:4].flatten().tolist() == list(range(16))
    assert batch.experts[6:].unique().tolist() == [255]
    assert pack_ledgers([unknown]).experts is None
