"""The models of `agentrl serve` learn what plain transformers and peft compute, each as if it were alone."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from agentrl.config.schema import Actor, Config, Model, Optim
from agentrl.core.errors import UserError
from agentrl.serve.contract import Adam, AdapterShape, Datum, PassResult
from agentrl.serve.losses import LOSSES
from agentrl.serve.models import Models
from agentrl.training import PolicyActor, load_model
from tests.training.test_model import tokenizer
from tests.training.tiny import CPU, VOCABULARY, random_batch, smoothed, tiny

KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"tie_word_embeddings": False},
    "llama": {"tie_word_embeddings": True, "num_key_value_heads": 4},
}
"""The first has grouped queries, the second tied embeddings."""
SHAPE = AdapterShape(rank=4, seed=7)
ADAM = Adam(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip_norm=0.5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    for kind, fields in KINDS.items():
        tiny(kind, packed=False, **fields).save_pretrained(root / kind)
        tokenizer().save_pretrained(root / kind)
    return {kind: root / kind for kind in KINDS}


def made(folder: Path, dtype: str = "auto") -> Models:
    config = Config()
    config.actor.fsdp_config.mixed_precision.param_dtype = dtype
    config.model.path, config.trainer.device = str(folder), "cpu"
    config.actor.ppo_max_token_len_per_gpu = 24  # several passes
    config.actor.share_prompts = folder.name == "llama"
    return Models(config)


@pytest.fixture(scope="module")
def models(folders) -> dict[str, Models]:
    return {kind: made(folder) for kind, folder in folders.items()}


def data(loss: str, *, width: int | None = None, seed: int = 0) -> list[Datum]:
    """Random sequences whose first third is padding, as the prompts of recipes are; the first and last begin alike."""
    rng = np.random.default_rng(seed)
    found: list[Datum] = []
    for length in (9, 5, 14, 3, 9):
        shape = (length,) if width is None else (length, width)
        part = (np.arange(length) >= length // 3).reshape(-1, *[1] * (len(shape) - 1))
        columns: dict[str, Any] = {"target_tokens": rng.integers(3, VOCABULARY, shape)}
        columns["weights"] = part * rng.normal(size=shape).astype(np.float32)
        columns["advantages"] = part * rng.normal(size=shape).astype(np.float32)
        columns["logprobs"] = part * rng.normal(-5, 1, size=shape).astype(np.float32)
        columns["sequence_ratio_mask"] = part.astype(np.float32)
        read = ("target_tokens", *LOSSES[loss].columns)
        ids = rng.integers(3, VOCABULARY, length)
        if len(found) == 4:
            ids[:5] = found[0].ids[:5]
        found.append(Datum(ids, {name: columns[name] for name in read}))
    return found


def passed(models: Models, *given: Any, backward: bool) -> PassResult:
    """The result of a pass that nothing interrupts."""
    *_, result = models.forward_backward(*given, backward=backward)
    assert result is not None
    return result


def reference(models: Models, name: str) -> PeftModel:
    """The base with the same adapter, by transformers and peft alone."""
    tenant = models._tenant(name)
    path = models.roles.config.model.path
    base = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    targets = [f"{name}_proj" for name in (*"qkvo", "gate", "up", "down")]
    lora = LoraConfig(r=4, lora_alpha=32, target_modules=[*targets, "lm_head"])
    network = get_peft_model(base, lora, adapter_name=tenant.slot)
    own = dict(network.named_parameters())
    assert {n for n, p in own.items() if p.requires_grad} == tenant.tensors.keys()
    with torch.no_grad():
        for tensor_name, tensor in tenant.tensors.items():
            own[tensor_name].copy_(tensor)
    return network


def with_weights(models: Models, name: str, shape: AdapterShape = SHAPE) -> None:
    """A model whose adapter has no zeros."""
    models.create(name, shape)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in models.tenants[name].tensors.values():
            tensor.add_(0.02 * torch.randn(tensor.shape, generator=draw))


def plain_loss(loss: str, logprobs: torch.Tensor, columns: dict[str, torch.Tensor]) -> torch.Tensor:
    """The formulas of the protocol's pages, over all tokens of a sequence that are no padding."""
    if loss == "cross_entropy":
        return -(columns["weights"] * logprobs).sum()
    old, advantages = columns["logprobs"], columns["advantages"]
    ratio = (logprobs - old).exp()
    if loss == "importance_sampling":
        return -(ratio * advantages).sum()
    if loss == "cispo":
        return -(ratio.clamp(0.8, 1.2).detach() * logprobs * advantages).sum()
    if loss == "dro":
        part = (advantages != 0) | (old != 0)
        return -((logprobs * advantages - 0.05 / 2 * (logprobs - old) ** 2) * part).sum()
    if loss == "gspo":
        mask = columns["sequence_ratio_mask"]
        whole = ((mask * (logprobs - old)).sum() / mask.sum()).exp().detach()
        ratio = whole * (logprobs - logprobs.detach()).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()


@pytest.mark.parametrize("loss", [*LOSSES, "cross_entropy of several targets"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_plain_transformers(models, kind, loss) -> None:
    width, loss = (3 if " " in loss else None), loss.split()[0]
    own, given = models[kind], data(loss, width=width)
    with_weights(own, "truth")
    found = passed(own, "truth", given, loss, {}, backward=True)
    network, total = reference(own, "truth"), torch.zeros(())
    for datum, logprobs in zip(given, found.logprobs, strict=True):
        columns = {name: torch.from_numpy(column) for name, column in datum.columns.items()}
        targets = columns["target_tokens"].reshape(len(datum.ids), -1)
        every = network(input_ids=torch.from_numpy(datum.ids)[None]).logits[0].log_softmax(-1)
        expected = every.gather(1, targets).reshape(columns["target_tokens"].shape)
        torch.testing.assert_close(torch.from_numpy(logprobs), expected.detach(), rtol=1e-6, atol=1e-5)
        total = total + plain_loss(loss, expected, columns)
    total.backward()
    assert found.metrics["loss:sum"] == pytest.approx(float(total.detach()), abs=1e-4)  # 1e-6 of terms that cancel out
    expected_norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
    for name, tensor in own.tenants["truth"].tensors.items():
        gradient = dict(network.named_parameters())[name].grad
        difference = (tensor.grad - gradient).abs().max() / expected_norm
        assert difference < 1e-6, name
    assert own.tenants["truth"].score.linear_head  # no logits of a whole pass
    own.remove("truth")


def test_forward_alone_adds_no_gradient(models) -> None:
    own, given = models["qwen3"], data("ppo")
    with_weights(own, "forward")
    alone = passed(own, "forward", given, "ppo", {}, backward=False)
    assert all(tensor.grad is None for tensor in own.tenants["forward"].tensors.values())
    both = passed(own, "forward", given, "ppo", {}, backward=True)
    assert alone.metrics == both.metrics
    assert all(np.array_equal(a, b) for a, b in zip(alone.logprobs, both.logprobs, strict=True))
    own.remove("forward")


SHAPES = [SHAPE, AdapterShape(rank=4, seed=8), AdapterShape(rank=2, seed=7, unembed=False), AdapterShape(3, mlp=False)]


def steps(models: Models, name: str, number: int) -> dict[str, float]:
    """Two passes and a step of a model."""
    passed(models, name, data("cross_entropy", seed=number), "cross_entropy", {}, backward=True)
    passed(models, name, data("ppo", seed=9 + number), "ppo", {"clip_high_threshold": 1.3}, backward=True)
    return models.optim_step(name, ADAM)


def weights(models: Models, name: str) -> dict[str, torch.Tensor]:
    return {own: tensor.detach().clone() for own, tensor in models.tenants[name].tensors.items()}


def test_models_that_are_trained_in_turn_learn_what_each_learns_alone(folders) -> None:
    alone, norms = [], []
    for shape in SHAPES:
        one = made(folders["llama"])
        one.create("it", shape)
        norms.append([steps(one, "it", number)["grad_norm:mean"] for number in range(2)])
        alone.append(weights(one, "it"))
    all_of_them = made(folders["llama"])
    for number, shape in enumerate(SHAPES):
        all_of_them.create(f"m{number}", shape)
    found: dict[int, list[float]] = {number: [] for number in range(len(SHAPES))}
    for round_, order in enumerate(((2, 0, 3, 1), (1, 3, 0, 2))):
        for number in order:
            found[number].append(steps(all_of_them, f"m{number}", round_)["grad_norm:mean"])
    assert [found[number] for number in range(len(SHAPES))] == norms
    for number, expected in enumerate(alone):
        together = weights(all_of_them, f"m{number}")
        assert together.keys() == expected.keys()
        assert all(torch.equal(together[name], expected[name]) for name in expected)


def test_models_in_half_precision_have_gradients_of_their_own(models, folders) -> None:
    half, exact = made(folders["qwen3"], "bfloat16"), models["qwen3"]
    for own, number in ((own, number) for own in (half, exact) for number in (0, 1)):
        with_weights(own, f"m{number}", replace(SHAPE, seed=number))
    for own in (half, exact):
        for number in (0, 1, 0):
            given = data("cross_entropy", seed=number)
            passed(own, f"m{number}", given, "cross_entropy", {}, backward=True)
    for name in ("m0", "m1"):
        for own, tensor in half.tenants[name].tensors.items():
            expected = exact.tenants[name].tensors[own].grad
            assert torch.nn.functional.cosine_similarity(tensor.grad.flatten(), expected.flatten(), 0) > 0.99, own
    assert half.tenants["m0"].score.linear_head
    exact.remove("m0")
    exact.remove("m1")


def test_a_model_goes_on_from_a_save_as_if_there_was_none(models, tmp_path) -> None:
    own = models["qwen3"]
    for name in ("saved", "loaded", "begun"):
        own.create(name, replace(SHAPE, seed=len(name)))
    steps(own, "saved", 0)
    passed(own, "saved", data("dro"), "dro", {}, backward=True)
    own.save("saved", tmp_path / "state")
    steps(own, "loaded", 3)  # all of it is replaced
    own.load("loaded", tmp_path / "state", optimizer=True)
    own.load("begun", tmp_path / "state", optimizer=False)
    assert all(torch.equal(t, weights(own, "saved")[n]) for n, t in weights(own, "begun").items())
    norms = [steps(own, name, 1)["grad_norm:mean"] for name in ("saved", "loaded", "begun")]
    assert norms[0] == norms[1] != norms[2]
    assert all(torch.equal(t, weights(own, "saved")[n]) for n, t in weights(own, "loaded").items())
    own.create("other", replace(SHAPE, rank=3))
    before = weights(own, "other")
    with pytest.raises(UserError, match="another model or rank"):
        own.load("other", tmp_path / "state", optimizer=True)
    assert all(torch.equal(t, before[n]) for n, t in weights(own, "other").items())
    for name in ("saved", "loaded", "begun", "other"):
        own.remove(name)


def test_a_few_steps_are_those_of_the_policy_of_a_run(models, folders) -> None:
    own = models["llama"]
    shape = replace(SHAPE, unembed=False)
    with_weights(own, "served", shape)
    network = load_model(Model(path=str(folders["llama"]), lora_rank=4, lora_alpha=32), device=CPU, seed=0)
    theirs = dict(network.module.named_parameters())
    slot = own.tenants["served"].slot
    with torch.no_grad():
        for name, tensor in own.tenants["served"].tensors.items():
            theirs[name.replace(slot, "default")].copy_(tensor)
    optim = Optim(lr=ADAM.learning_rate, betas=[ADAM.beta1, ADAM.beta2], weight_decay=ADAM.weight_decay)
    actor = Actor(ppo_mini_batch_size=8, loss_agg_mode="token-sum", grad_clip=0.5, clip_ratio_c=1e6, optim=optim)
    actor.ppo_max_token_len_per_gpu = 24
    policy = smoothed(PolicyActor(network, actor=actor, temperature=1.0, device=CPU, total_steps=3))
    for seed in range(3):
        batch = random_batch([6, 9, 4, 8], seed=seed)
        old = policy.logprobs(batch)[0]
        batch.old_logprobs = (
            old + 0.3 * torch.randn(len(old), generator=torch.Generator().manual_seed(seed)) * batch.mask
        )
        assert batch.advantages is not None
        columns = {"target_tokens": batch.ids, "logprobs": batch.old_logprobs, "advantages": batch.advantages}
        rows = zip(*(column.split(batch.lengths) for column in columns.values()), strict=True)
        given = [
            Datum(row[0][:-1].numpy(), {n: c[1:].numpy() for n, c in zip(columns, row, strict=True)}) for row in rows
        ]
        passed(own, "served", given, "ppo", {}, backward=True)
        norm = own.optim_step("served", replace(ADAM, eps=1e-2))["grad_norm:mean"]
        assert policy.update(batch)["actor/grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, tensor in own.tenants["served"].tensors.items():
        torch.testing.assert_close(tensor, theirs[name.replace(slot, "default")], rtol=1e-6, atol=1e-6)
    own.remove("served")


@torch.no_grad()
def logits(network: Any) -> torch.Tensor:
    return network(input_ids=torch.arange(3, 40)[None]).logits


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_an_exported_adapter(models, folders, tmp_path, kind, caplog) -> None:
    own = models[kind]
    with_weights(own, "exported")
    own.export("exported", tmp_path / "a")
    steps(own, "exported", 0)
    own.export("exported", tmp_path / "a")  # in the place of the first
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folders[kind])
    base = AutoModelForCausalLM.from_pretrained(folders[kind])
    expected = logits(reference(own, "exported"))
    assert not torch.allclose(expected, logits(base), atol=1e-3)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(logits(PeftModel.from_pretrained(base, tmp_path / "a")), expected)
    own.remove("exported")


def test_all_weights_are_trained_of_one_model_alone(folders, tmp_path) -> None:
    own = made(folders["llama"])
    first, base = data("cross_entropy"), own.base.module
    before = logits(base)
    own.create("adapter", SHAPE)
    expected = passed(own, "adapter", first, "cross_entropy", {}, backward=False)
    with pytest.raises(UserError, match="unload adapter first"):
        own.create("full", AdapterShape(rank=0))
    own.remove("adapter")
    own.create("full", AdapterShape(rank=0))
    with pytest.raises(UserError, match="unload full first"):
        own.create("adapter", SHAPE)
    found = passed(own, "full", first, "cross_entropy", {}, backward=True)
    assert found.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    own.optim_step("full", ADAM)
    own.save("full", tmp_path / "state")
    after = passed(own, "full", first, "cross_entropy", {}, backward=False).metrics["loss:sum"]
    own.export("full", tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(logits(network), logits(base))  # in place, where samplers read them
    own.optim_step("full", replace(ADAM, learning_rate=1.0))
    own.load("full", tmp_path / "state", optimizer=True)
    again = passed(own, "full", first, "cross_entropy", {}, backward=False).metrics["loss:sum"]
    assert again == after != found.metrics["loss:sum"]
    state = sum(parameter._version for parameter in base.parameters())
    own.remove("full")
    assert sum(parameter._version for parameter in base.parameters()) != state
    assert torch.equal(logits(base), before)
    own.create("adapter", SHAPE)
    assert passed(own, "adapter", first, "cross_entropy", {}, backward=False).metrics == expected.metrics


def changed(**columns: Any) -> list[Datum]:
    """Data of which the last one has other columns; None: without it. `ids` is one of them."""
    first, *_, last, _ = data("ppo")
    kept = {"ids": last.ids, **last.columns, **columns}
    ids = kept.pop("ids")
    return [first, Datum(ids, {name: column for name, column in kept.items() if column is not None})]


BAD: dict[str, tuple[str, dict[str, float], dict[str, Any], str]] = {
    "an unknown loss": ("stable_reinforce", {}, {}, "is not served; use .*importance_sampling"),
    "an unknown setting": ("ppo", {"beta": 1.0}, {}, "ppo has no setting beta; it has clip_low_threshold"),
    "bounds in the wrong order": ("ppo", {"clip_low_threshold": 2.0}, {}, "not above"),
    "no finite setting": ("dro", {"beta": float("nan")}, {}, "finite"),
    "a huge setting": ("dro", {"beta": 10**400}, {}, "finite"),
    "a missing column": ("ppo", {}, {"logprobs": None, "advantages": None}, "datum 1: .*lacks advantages, logprobs"),
    "another length": ("ppo", {}, {"advantages": np.ones(2, np.float32)}, r"advantages is float32 \[2\]; send"),
    "another type": ("ppo", {}, {"advantages": np.array(["a"] * 3)}, "advantages is <U1"),
    "targets of another length": ("ppo", {}, {"target_tokens": np.ones(2, np.int64)}, r"target_tokens has shape \[2\]"),
    "several targets": ("ppo", {}, {"target_tokens": np.ones((3, 2), np.int64)}, r"target_tokens has shape \[3, 2\]"),
    "no tokens": ("ppo", {}, {"ids": np.empty(0, np.int64)}, "datum 1: the input has 0 numbers"),
    "ids that are no numbers": ("ppo", {}, {"ids": np.ones(3)}, "float64; send token ids"),
    "unknown ids": ("ppo", {}, {"ids": np.full(3, VOCABULARY)}, "the model knows 0 to 96"),
    "negative targets": ("ppo", {}, {"target_tokens": np.full(3, -1)}, "target_tokens has ids from -1"),
    "too many tokens": ("ppo", {}, {"ids": np.ones(128, np.int64)}, "send 1 to 127 tokens"),
    "infinite log-probs": ("ppo", {}, {"logprobs": np.full(3, -np.inf, np.float32)}, "logprobs is not finite"),
}


@pytest.fixture(scope="module")
def unchanged(models) -> dict[str, torch.Tensor]:
    """The gradients so far of a model."""
    models["qwen3"].create("refused", SHAPE)
    passed(models["qwen3"], "refused", data("ppo"), "ppo", {}, backward=True)
    return {name: tensor.grad.clone() for name, tensor in models["qwen3"].tenants["refused"].tensors.items()}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_refused_in_a_line_before_anything_changes(models, unchanged, case) -> None:
    loss, settings, columns, line = BAD[case]
    with pytest.raises(UserError, match=line) as caught:
        passed(models["qwen3"], "refused", changed(**columns), loss, settings, backward=True)
    assert "\n" not in str(caught.value)
    tensors = models["qwen3"].tenants["refused"].tensors
    assert all(torch.equal(tensors[name].grad, gradient) for name, gradient in unchanged.items())


def test_padding_has_no_part_whatever_its_log_probs_are(models) -> None:
    own, given = models["llama"], data("importance_sampling")
    own.create("padded", SHAPE)
    expected = passed(own, "padded", given, "importance_sampling", {}, backward=True).metrics
    for datum in given:
        datum.columns["logprobs"][datum.columns["advantages"] == 0] = -np.inf
    assert passed(own, "padded", given, "importance_sampling", {}, backward=True).metrics == expected
    assert np.isfinite(own.optim_step("padded", ADAM)["grad_norm:mean"])
    own.remove("padded")


def test_other_models_compute_between_micro_batches(models) -> None:
    own, given = models["llama"], data("ppo")
    gradients, results = [], []
    for name, rounds in (("alone", ["large"]), ("mixed", ["large", "small"])):
        for one in ("large", "small"):
            own.create(one, replace(SHAPE, seed=len(one)))
            passed(own, one, data("dro"), "dro", {}, backward=True)
        running = {one: own.forward_backward(one, given, "ppo", {}, backward=True) for one in rounds}
        turns = [[next(running[one], "done") for one in rounds] for _ in range(3)]
        assert [turn[0] is None for turn in turns] == [True, False, False], name
        results.append(turns[1][0])
        gradients.append([tensor.grad.clone() for tensor in own.tenants["large"].tensors.values()])
        own.remove("large")
        own.remove("small")
    assert results[0].metrics == results[1].metrics
    assert all(map(np.array_equal, results[0].logprobs, results[1].logprobs))
    assert all(map(torch.equal, *gradients))


def test_a_failed_pass_leaves_the_gradients_so_far(models, monkeypatch) -> None:
    own, given = models["llama"], data("ppo")
    own.create("failing", SHAPE)
    passed(own, "failing", given, "ppo", {}, backward=True)
    tenant = own.tenants["failing"]
    before = {name: tensor.grad.clone() for name, tensor in tenant.tensors.items() if tensor.grad is not None}
    passes = [tenant.loss]

    def fails(micro: Any, report: Any) -> torch.Tensor:
        return passes.pop()(micro, report)  # IndexError in the second pass

    with monkeypatch.context() as patch:
        patch.setattr(tenant, "loss", fails)
        with pytest.raises(IndexError):
            passed(own, "failing", given, "ppo", {}, backward=True)
    assert all(torch.equal(tensor.grad, before[name]) for name, tensor in tenant.tensors.items())
    own.remove("failing")


@pytest.mark.parametrize(
    "shape", [AdapterShape(rank=-1), AdapterShape(rank=65), AdapterShape(4, None, False, False, False)]
)
def test_an_impossible_adapter_is_refused(models, shape) -> None:
    with pytest.raises(UserError, match="set a rank of 1 to 64 and layers"):
        models["llama"].create("impossible", shape)
    assert "impossible" not in models["llama"].tenants


def test_numbers_of_a_step_are_checked(models) -> None:
    models["llama"].create("stepped", SHAPE)
    for adam in (replace(ADAM, learning_rate=float("nan")), replace(ADAM, beta2=1.0), replace(ADAM, eps=-1.0)):
        with pytest.raises(UserError, match="betas below 1"):
            models["llama"].optim_step("stepped", adam)
    assert models["llama"].optim_step("stepped", ADAM)["grad_norm:mean"] == 0.0
    models["llama"].remove("stepped")
    with pytest.raises(UserError, match="no model stepped"):
        models["llama"].optim_step("stepped", ADAM)
