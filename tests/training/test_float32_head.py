"""The output layer's product in float32 under half-precision layers, beside one in float64 on the same states."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agentrl.algorithms.kl import kl_of_logits
from agentrl.config.schema import Actor, Model
from agentrl.config.schema.fsdp import FsdpConfig, MixedPrecision
from agentrl.config.schema.reward import RewardModel, RewardNetwork
from agentrl.engines.hf.projection import Projection
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang.flags import command
from agentrl.training import PolicyActor, load_model
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.chunked import ChunkedLogprobs
from agentrl.training.model.head.float32_head import Float32Linear, in_float32, product
from agentrl.training.model.head.logprobs import Readout, TokenLogprobs
from agentrl.training.model.loading import float32_masters
from agentrl.training.model.reward_model import Judge
from agentrl.training.model.value_model import TokenValues, load_value_model
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.micro_batches import MicroBatching
from tests.training.tiny import CPU, random_batch, tiny

LENGTHS = [7, 12, 4, 9]
HALF = FsdpConfig(mixed_precision=MixedPrecision(param_dtype="bfloat16"))


@pytest.fixture(scope="module", params=[False, True], ids=["own", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny("qwen3", tie_word_embeddings=request.param).save_pretrained(path)
    return path


def loaded(folder: Path, config: FsdpConfig = HALF, **model) -> ModelHandle:
    settings = Model(path=str(folder), **model)
    return load_on_ranks(lambda d: float32_masters(load_model(settings, device=d, seed=0)), ALONE, config, device=CPU)


def randomised(model: ModelHandle) -> ModelHandle:
    """An adapter that does something."""
    for name, parameter in model.module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
    return model


def exact(model: ModelHandle, batch) -> torch.Tensor:
    """Log-probs by an output layer in float64 on the hidden states, and with the weights, that the layers have."""
    causal_lm = model.base
    seen = []
    handle = causal_lm.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.run_gathered(lambda: [causal_lm(batch.select([i]).ids[None]) for i in range(batch.num_sequences)])
    handle.remove()
    hidden = torch.cat([x[0] for x in seen]).bfloat16().double()
    logits = hidden @ weights(causal_lm.get_output_embeddings(), hidden.shape[1])
    wanted = (batch.mask & (batch.positions > 0)).nonzero()[:, 0]
    found = logits[wanted - 1].log_softmax(-1).gather(-1, batch.ids[wanted][:, None])[:, 0]
    return torch.zeros(batch.num_tokens, dtype=torch.float64).index_copy(0, wanted, found)


def weights(head: nn.Module, width: int) -> torch.Tensor:
    """[H, V], float64, of an output layer's parts as layers in bfloat16 have them."""

    def of(layer: nn.Module) -> torch.Tensor:
        return layer.weight.detach().bfloat16().double().T

    if not hasattr(head, "lora_A"):
        return of(head)
    return of(head.base_layer) + of(head.lora_A["default"]) @ of(head.lora_B["default"]) * head.scaling["default"]


WAYS = {
    "chunked": {},
    "whole": {"use_fused_kernels": False},
    "lora": {"lora_rank": 4},
    "adapted": {"lora_rank": 4, "target_modules": ["q_proj", "lm_head"]},
}


@pytest.mark.prevents("logits in bfloat16 cause the gap between trainer and engine")
@pytest.mark.parametrize("way", WAYS)
def test_its_log_probs_are_those_of_one_in_float64(folder: Path, way: str) -> None:
    batch, errors = random_batch(LENGTHS), {}
    for wide in (True, False):
        model = randomised(loaded(folder, enable_fp32_lm_head=wide, **WAYS[way]))
        model.base.set_attn_implementation("sdpa")  # sequences one by one, as `exact` has them
        with torch.no_grad():
            found = TokenLogprobs(model)(batch)[0]
        errors[wide] = float((found - exact(model, batch)).abs().max())
    # Between its two matrices an adapter rounds as the layers do.
    assert errors[True] < (5e-3 if way == "adapted" else 1e-4)
    assert errors[False] > (2 if way == "adapted" else 50) * errors[True]


def exact_kl(theirs: Readout, wide: bool, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return kl_of_logits(logits, theirs.logits(tokens, wide=wide) * 0.7)[None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("compared", [False, True])
def test_its_gradients_are_those_of_one_in_float64(bias: bool, compared: bool) -> None:
    torch.manual_seed(0)

    def parts() -> list[torch.Tensor | None]:
        return [torch.randn(50, 64).bfloat16(), torch.randn(97, 64).bfloat16(), torch.randn(97).bfloat16()][: 2 + bias]

    mine, targets, by = parts(), torch.randint(97, (50,)), torch.randn(3, 50)
    other = parts()
    errors = {}
    for wide in (True, False):
        leaves = [x.clone().requires_grad_() for x in mine]
        comparison = (partial(exact_kl, Readout(*other), wide), torch.arange(50)) if compared else ()
        found = ChunkedLogprobs.apply(*leaves, *([None] * (not bias)), targets, 0.7, "torch", wide, 0, *comparison)
        wanted_leaves = [x.double().requires_grad_() for x in mine]
        logprobs = (F.linear(*wanted_leaves) * 0.7).log_softmax(-1)
        wanted = [logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)]
        if compared:
            others = (F.linear(*(x.double() for x in other if x is not None)) * 0.7).log_softmax(-1)
            wanted.append((logprobs.exp() * (logprobs - others)).sum(-1))
        sum((f * b).sum() for f, b in zip(found, by, strict=False)).backward()
        sum((w * b).sum() for w, b in zip(wanted, by.double(), strict=False)).backward()
        errors[wide] = max(float((f - w).detach().abs().max()) for f, w in zip(found, wanted, strict=True))
        rounded = [w.grad.bfloat16().double() for w in wanted_leaves]
        slopes = [(o.grad - r).norm() / r.norm() for o, r in zip(leaves, rounded, strict=True)]
        assert max(slopes) < (2e-3 if wide else 0.05)
    assert errors[True] < 1e-4 < 1e-2 < errors[False]


def test_a_product_keeps_what_float32_has() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(30, 200), torch.randn(200, 40)
    for one, other, error in (
        (a.bfloat16(), b.bfloat16(), 1e-6),
        (a, b.bfloat16(), 3e-5),
        (a.half(), b.half(), 1e-6),
        (a, b.half(), 1e-6),
        (a, b, 1e-6),
    ):
        with torch.autocast("cpu", torch.bfloat16):  # as within the model
            wanted, found = one.double() @ other.double(), product(one, other)
        assert found.dtype == torch.float32
        assert (found - wanted).norm() < error * wanted.norm()


def test_a_policy_trains_with_it_and_the_reference_has_it_too(folder: Path) -> None:
    settings = {"use_kl_loss": True, "kl_loss_type": "full", "kl_loss_coef": 1.0}
    model, held = (loaded(folder, enable_fp32_lm_head=True) for _ in range(2))
    reference = Reference(held, temperature=1.0, micro_batching=MicroBatching(), device=CPU)
    actor = Actor(**settings)
    trainable = PolicyActor(model, actor=actor, temperature=1.0, device=CPU, total_steps=9, reference=reference)
    before = model.head.weight.detach().clone()
    metrics = trainable.update(random_batch(LENGTHS))
    assert abs(metrics["actor/kl_loss"]) < 1e-6
    assert not torch.equal(model.head.weight, before)


def test_in_float32_it_changes_nothing(folder: Path) -> None:
    batch, found = random_batch(LENGTHS), []
    for wide in (True, False):
        with torch.no_grad():
            found.append(TokenLogprobs(loaded(folder, FsdpConfig(), enable_fp32_lm_head=wide))(batch)[0])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-6)


def test_the_engine_in_this_process_has_it() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 97, bias=True).bfloat16().requires_grad_(False)
    x = torch.randn(5, 64).bfloat16()
    wanted = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    assert Projection(layer)(x).dtype == torch.bfloat16
    in_float32(layer)
    assert type(layer) is Float32Linear
    found = Projection(layer)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.float(), atol=1e-5, rtol=1e-5)


def test_values_and_scores_are_not_rounded_to_half_precision(tmp_path: Path) -> None:
    tiny("qwen3").save_pretrained(tmp_path / "model")
    network = Model(path=str(tmp_path / "model"))
    model = load_on_ranks(lambda d: load_value_model(network, device=d, seed=0), ALONE, HALF, device=CPU)
    nn.init.normal_(model.base.score.weight)
    batch = random_batch(LENGTHS)
    with torch.no_grad():
        (values,) = TokenValues(model)(batch)
    assert (values != values.bfloat16().float()).float().mean() > 0.5 * batch.mask.float().mean()
    model.module.bfloat16().save_pretrained(tmp_path / "judge")
    config = type(model.config).from_pretrained(tmp_path / "judge", num_labels=1, architectures=None)
    config.save_pretrained(tmp_path / "judge")
    judge = Judge(RewardModel(enable=True, model=RewardNetwork(path=str(tmp_path / "judge"))), device=CPU)
    scores = torch.tensor(judge([[5, 6, 7], [8, 9], [10, 11, 12, 13]]))
    assert (scores != scores.bfloat16().float()).any()


def test_sglang_is_told() -> None:
    for wide in (True, False):
        words = command(
            ServerSettings("python", "base", "cpu", "bfloat16", 64, 2, policy=Model(enable_fp32_lm_head=wide)), 1
        )
        assert ("--enable-fp32-lm-head" in words) == wide
