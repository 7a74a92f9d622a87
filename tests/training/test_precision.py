"""Rounding: float32 parameters, loss scales, the output layer in float32."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from agentrl.config.schema import Actor, Critic, Model, Optim
from agentrl.config.schema.critic import CriticOptim
from agentrl.config.schema.fsdp import FsdpConfig, MixedPrecision
from agentrl.core.errors import UserError
from agentrl.training import PolicyActor, load_model
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import float32_masters
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.model.value_model import load_value_model
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.parallel.sharding import load_on_ranks, match_trained_precision
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.critic import ValueCritic
from agentrl.training.update.micro_batches import MicroBatching
from agentrl.training.update.optimizer import SCALE_INTERVAL, LossScale
from tests.training.tiny import CPU, random_batch, smoothed, tiny

LENGTHS = [7, 12, 4, 9, 6, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose files are in bfloat16."""
    path = tmp_path_factory.mktemp("model")
    tiny("qwen3").to(torch.bfloat16).save_pretrained(path)
    return path


def policy(folder: Path, dtype: str, *, computed: str = "auto", **model) -> ModelHandle:
    def load(device: torch.device) -> ModelHandle:
        return float32_masters(load_model(Model(path=str(folder), dtype=dtype, **model), device=device, seed=0))

    config = FsdpConfig(mixed_precision=MixedPrecision(param_dtype=computed))
    return load_on_ranks(load, ALONE, config, device=CPU)


def actor_of(module: ModelHandle, **settings) -> PolicyActor:
    actor = Actor(**({"optim": Optim(lr=1e-6, weight_decay=0.0)} | settings))
    return PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=9)


def trained(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}


def update(model: ModelHandle, **settings) -> torch.Tensor:
    """By how much an update at a usual learning rate moves the parameters."""
    before = trained(model.module)
    actor_of(model, **settings).update(random_batch(LENGTHS))
    return torch.cat([(p - before[n]).flatten() for n, p in trained(model.module).items()])


@pytest.mark.prevents("parameters in bfloat16 do not move at the usual learning rates")
@pytest.mark.parametrize("computed", ["auto", "bfloat16"])
def test_a_policy_read_in_bfloat16_moves_as_one_in_float32(folder: Path, computed: str) -> None:
    exact = update(policy(folder, "float32"))
    moved = update(policy(folder, "bfloat16", computed=computed))
    assert (moved != 0).float().mean() == pytest.approx((exact != 0).float().mean().item(), abs=0.02)
    weighed = exact.abs() > 0.5e-6  # elsewhere rounding decides about the sign of a gradient near 0
    cosine = torch.cosine_similarity(moved[weighed], exact[weighed], dim=0)
    assert cosine > (0.9 if computed == "bfloat16" else 0.9999)


def test_half_precision_is_never_trained(folder: Path) -> None:
    with pytest.raises(UserError, match="float32_masters"):
        actor_of(load_model(Model(path=str(folder), dtype="bfloat16"), device=CPU, seed=0))


def test_under_lora_the_base_keeps_its_dtype_and_the_adapter_is_float32(folder: Path) -> None:
    model = policy(folder, "bfloat16", lora_rank=4)
    kinds = {(p.requires_grad, p.dtype) for p in model.module.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    assert update(model).abs().max() > 0


def test_tied_embeddings_stay_tied() -> None:
    module = float32_masters(ModelHandle(tiny("llama", tie_word_embeddings=True).to(torch.bfloat16))).module
    assert module.lm_head.weight is module.model.embed_tokens.weight
    assert module.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("computed", ["auto", "bfloat16"])
def test_a_critic_read_in_bfloat16_learns_in_float32(folder: Path, lora_rank: int, computed: str) -> None:
    network = Model(path=str(folder), dtype="bfloat16", lora_rank=lora_rank)
    config = FsdpConfig(mixed_precision=MixedPrecision(param_dtype=computed))
    model = load_on_ranks(lambda device: load_value_model(network, device=device, seed=0), ALONE, config, device=CPU)
    trainable = ValueCritic(model, critic=Critic(optim=CriticOptim(lr=1e-6)), actor=Actor(), device=CPU, total_steps=9)
    before, batch = trained(model.module), random_batch(LENGTHS)
    assert {p.dtype for p in before.values()} == {torch.float32}
    for _ in range(2):  # the head begins at zero, so the first step moves nothing else
        batch.returns, batch.values = torch.linspace(0, 1, batch.num_tokens) * batch.mask, None
        trainable.update(batch)
    share = [float((p != before[n]).float().mean()) for n, p in trained(model.module).items() if "lora_A" not in n]
    assert sum(share) / len(share) > 0.8


@pytest.mark.parametrize("computed", ["bfloat16", "float16", "float32"])
def test_one_process_computes_in_the_configured_dtype(folder: Path, computed: str) -> None:
    batch = random_batch(LENGTHS)
    exact = actor_of(policy(folder, "float32")).logprobs(batch)[0]
    found = actor_of(policy(folder, "float32", computed=computed)).logprobs(batch)[0]
    error = float((found - exact).abs().max())
    assert {"bfloat16": 1e-3 < error < 0.5, "float16": 1e-5 < error < 0.05, "float32": error < 1e-5}[computed]


def test_a_bfloat16_base_computes_in_float32_if_configured(folder: Path) -> None:
    batch = random_batch(LENGTHS)
    exact = actor_of(policy(folder, "float32", lora_rank=4)).logprobs(batch)[0]
    found = actor_of(policy(folder, "bfloat16", computed="float32", lora_rank=4)).logprobs(batch)[0]
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=0)


def test_a_reference_in_bfloat16_is_the_policy_as_it_began(folder: Path) -> None:
    frozen = load_model(Model(path=str(folder), dtype="bfloat16"), device=CPU, seed=0)
    frozen.compute_in(torch.bfloat16)
    assert pack_where_exact(frozen, CPU)
    reference = Reference(match_trained_precision(frozen), temperature=1.0, micro_batching=MicroBatching(), device=CPU)
    batch = random_batch(LENGTHS)
    assert {p.dtype for p in frozen.module.parameters()} == {torch.bfloat16}
    assert torch.equal(
        actor_of(policy(folder, "bfloat16", computed="bfloat16")).logprobs(batch)[0], reference.logprobs(batch)
    )


def test_a_checkpoint_with_parameters_in_bfloat16_is_gone_on_from(folder: Path) -> None:
    trainable = actor_of(policy(folder, "bfloat16"))
    trainable.update(random_batch(LENGTHS))
    state = trainable.state_dict()
    half = {n: replace(chunk, values=chunk.values.bfloat16()) for n, chunk in state["parameters"].items()}
    moments = {
        name: {n: replace(chunk, values=chunk.values.bfloat16()) for n, chunk in chunks.items()}
        for name, chunks in state["optimizer"]["moments"].items()
    }
    other = actor_of(policy(folder, "bfloat16"))
    other.load_state_dict(state | {"parameters": half, "optimizer": state["optimizer"] | {"moments": moments}})
    assert {p.dtype for p in other.model.module.parameters()} == {torch.float32}
    assert {m.dtype for s in other.optimizer.rules[0].state.values() for m in s.values()} == {torch.float32}
    assert all(torch.equal(p, half[n].values.float().view(p.shape)) for n, p in other.model.module.named_parameters())
    other.update(random_batch(LENGTHS))


def gradients(module: nn.Module, **settings) -> tuple[torch.Tensor, dict[str, float]]:
    """Of one update: the gradient that AdamW sees, and the metrics."""
    trainable = actor_of(module, grad_clip=0.0, **settings)
    seen = []
    trainable.optimizer.rules[0].step = lambda: seen.extend(p.grad.flatten() for p in trainable.optimizer.parameters)
    metrics = trainable.update(random_batch(LENGTHS))
    return (torch.cat(seen) if seen else torch.zeros(0)), metrics


MANY = {"loss_agg_mode": "seq-mean-token-sum-norm"}


@pytest.mark.prevents("float16 loses the gradient of a mean over many tokens")
@pytest.mark.parametrize("tokens", [1_300, 1_300_000, 13_000_000])
def test_float16_keeps_the_gradient_of_a_mean_over_many_tokens(folder: Path, tokens: int) -> None:
    """Each token has the weight that it would have among so many."""
    mean = MANY | {"loss_scale_factor": tokens}
    exact, expected = gradients(policy(folder, "float32"), **mean)
    passes = mean | {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2}
    found, metrics = gradients(policy(folder, "float32", computed="float16"), **passes)
    assert (found - exact).norm() < 0.01 * exact.norm()
    assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=0.01)
    assert metrics["actor/pg_loss"] == pytest.approx(expected["actor/pg_loss"], rel=0.01)
    assert metrics["actor/loss_scale"] == 2.0**16
    assert "actor/loss_scale" not in expected


def test_a_gradient_that_overflows_costs_a_step_and_halves_the_scale(folder: Path) -> None:
    model = policy(folder, "float32", computed="float16")
    trainable, batch = actor_of(model), random_batch(LENGTHS)
    trainable.optimizer.scale.value = 2.0**30
    before = trained(model.module)
    metrics = [trainable.update(batch)]
    assert all(torch.equal(p, before[n]) for n, p in trained(model.module).items())
    while metrics[-1]["actor/skipped_steps"]:
        metrics.append(trainable.update(batch))
    assert [m["actor/loss_scale"] for m in metrics] == [2.0 ** (30 - i) for i in range(len(metrics))]
    assert trainable.optimizer.skipped == len(metrics) - 1
    assert not all(torch.equal(p, before[n]) for n, p in trained(model.module).items())
    other = actor_of(policy(folder, "float32", computed="float16"))
    other.load_state_dict(trainable.state_dict())
    assert other.optimizer.scale.state_dict() == trainable.optimizer.scale.state_dict()
    old = trainable.state_dict()
    old["optimizer"].pop("scale")  # as checkpoints were before
    actor_of(model).load_state_dict(old)


def test_the_scale_rises_after_a_while_and_stays_within_bounds() -> None:
    scale = LossScale(torch.float16)
    for _ in range(SCALE_INTERVAL - 1):
        scale.update(overflow=False)
    assert scale.value == 2.0**16
    scale.update(overflow=False)
    assert scale.value == 2.0**17
    for _ in range(99):
        scale.update(overflow=True)
    assert scale.value == 1.0
    assert [LossScale(torch.float16, world).value for world in (1, 2, 6, 8)] == [2.0**16, 2.0**15, 2.0**13, 2.0**13]
    for dtype in (torch.bfloat16, None):
        assert LossScale(dtype).value == 1.0


def test_clipping_is_by_the_norm_of_the_loss_itself(folder: Path) -> None:
    steps = []
    for computed in ("float32", "float16"):
        trainable = smoothed(
            actor_of(policy(folder, "float32", computed=computed), grad_clip=0.1, optim=Optim(lr=1e-2))
        )
        before = trained(trainable.model.module)
        trainable.update(random_batch(LENGTHS))
        steps.append(torch.cat([(p - before[n]).flatten() for n, p in trained(trainable.model.module).items()]))
    assert (steps[0] - steps[1]).norm() < 0.02 * steps[0].norm()


def test_a_critic_in_float16_is_scaled_too(folder: Path) -> None:
    config = FsdpConfig(mixed_precision=MixedPrecision(param_dtype="float16"))
    network = Model(path=str(folder))
    model = load_on_ranks(lambda device: load_value_model(network, device=device, seed=0), ALONE, config, device=CPU)
    trainable = ValueCritic(model, critic=Critic(), actor=Actor(), device=CPU, total_steps=9)
    batch = random_batch(LENGTHS)
    batch.returns = torch.linspace(0, 1, batch.num_tokens) * batch.mask
    assert trainable.update(batch)["critic/loss_scale"] == 2.0**16
