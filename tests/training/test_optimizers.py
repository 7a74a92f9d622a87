"""Optimizers by name and path: what they get, what they do, and that a resumed run goes on as an unbroken one."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agentrl.config.choices import own_objects
from agentrl.config.derived import inherited, optimizer_name, state_bytes
from agentrl.config.schema import Config, Optim
from agentrl.config.schema.critic import CriticOptim
from agentrl.core.errors import UserError
from agentrl.training.update.optimizer import Optimizer, plain
from agentrl.training.update.optimizers import rounded_at_random, try_optimizer
from tests.training.tiny import tiny

CASES = {
    "adamw": {},
    "sgd": {"override_optimizer_config": {"momentum": 0.9, "nesterov": True}},
    "plain-sgd": {"optimizer": "SGD"},
    "muon": {},
    "RMSprop": {},
    "Adagrad": {},
    "NAdam": {},
    "Adafactor": {},  # its tensors have other shapes than the parameter
    "torch.optim.Adamax": {},
    "impl": {"optimizer": "RAdam", "optimizer_impl": "torch.optim"},
    "adamw_8bit": {},
    "adamw_16bit": {},
}
KINDS = {name: {"optimizer": name} | fields for name, fields in CASES.items()}


def made(module, *, lr=1e-2, **fields) -> Optimizer:
    return Optimizer(module, Optim(lr=lr, **fields), grad_clip=1.0, total_steps=8)


def take(optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        for parameter in optimizer.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()
        optimizer.advance()


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # torchao compiles its step


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_takes_the_steps_of_an_unbroken_one(kind):
    if kind == "adamw_8bit":
        pytest.importorskip("torchao")
    whole, other = tiny(seed=0), tiny(seed=0)
    unbroken = made(whole, **KINDS[kind])
    before = [p.detach().clone() for p in whole.parameters()]
    take(unbroken, range(3))
    assert all(not torch.equal(p, b) for p, b in zip(whole.parameters(), before, strict=True))
    other.load_state_dict(whole.state_dict())
    state = unbroken.state_dict()
    resumed = made(other, **KINDS[kind])
    resumed.load_state_dict(state)
    for mine, theirs in zip(other.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    take(unbroken, range(3, 5))
    take(resumed, range(3, 5))
    for mine, theirs in zip(other.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ["adamw", "Adagrad"])
def test_one_that_has_forgotten_takes_the_steps_of_a_new_one(kind):
    module, other = tiny(seed=0), tiny(seed=0)
    used, new = made(module, **KINDS[kind]), made(other, **KINDS[kind])
    take(used, range(2))
    used.forget()
    module.load_state_dict(other.state_dict())
    used.schedule_step = 0
    made(tiny(), **KINDS[kind]).load_state_dict(used.state_dict())
    for optimizer in (used, new):
        take(optimizer, range(2))
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_of_another_optimizer_is_refused():
    one, other = made(tiny()), made(tiny(), optimizer="sgd", override_optimizer_config={"momentum": 0.9})
    take(one, range(1))
    with pytest.raises(UserError, match="the checkpoint is of another optimizer"):
        other.load_state_dict(one.state_dict())


def test_a_checkpoint_of_an_older_version_is_read():
    module = tiny()
    one, other = made(module), made(module)
    take(one, range(2))
    state = one.state_dict()
    state["steps"] = state.pop("numbers")["step"]
    other.load_state_dict(state)
    assert {float(s["step"]) for s in other.rules[0].state.values()} == {2.0}


def test_muon_takes_the_matrices_of_blocks_alone():
    module = tiny()
    muon, adamw = made(module, optimizer="muon", override_optimizer_config={"momentum": 0.8}).rules
    names = {id(p): name for name, p in module.named_parameters()}
    of = {
        type(rule).__name__: {names[id(p)] for group in rule.param_groups for p in group["params"]}
        for rule in (muon, adamw)
    }
    assert of["Muon"] == {n for n, p in module.named_parameters() if ".layers." in n and p.ndim == 2}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= of["AdamW"]
    assert not of["Muon"] & of["AdamW"]
    assert muon.param_groups[0]["momentum"] == 0.8
    assert muon.param_groups[0]["adjust_lr_fn"] == "match_rms_adamw"
    assert {group["lr"] for rule in (muon, adamw) for group in rule.param_groups} == {1e-2}


def test_verl_s_way_to_name_one(monkeypatch):
    seen = []

    class AdamW8bit(torch.optim.SGD):
        def __init__(self, params, lr, betas=None, percentile=100):
            seen.append((lr, betas, percentile))
            super().__init__(params, lr=lr)

    module: Any = ModuleType("bitsandbytes.optim")
    module.AdamW8bit = AdamW8bit
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", module)
    fields = {"optimizer": "AdamW8bit", "optimizer_impl": "bitsandbytes.optim"}
    optimizer = made(tiny(), betas=[0.8, 0.9], **fields, override_optimizer_config={"percentile": 5})
    assert isinstance(optimizer.rules[0], AdamW8bit)
    assert seen == [(1e-2, (0.8, 0.9), 5)]
    ours = made(tiny(), optimizer="AdamW", optimizer_impl="torch.optim", override_optimizer_config={"eps": 1e-6})
    (rule,) = ours.rules
    assert type(rule) is torch.optim.AdamW
    assert rule.param_groups[0]["fused"]
    assert rule.param_groups[0]["eps"] == 1e-6


def test_a_decay_among_the_arguments_spares_norms():
    groups = made(tiny(), override_optimizer_config={"weight_decay": 0.3}).rules[0].param_groups
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0}


def test_one_of_the_users(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef sign(params, lr, *, beta=0.5):\n"
        "    return torch.optim.SGD(params, lr=lr, momentum=beta)\n\nmade = torch.optim.SGD([torch.zeros(1)], lr=1)\n"
    )
    optimizer = made(tiny(), optimizer=f"{tmp_path}/mine.py:sign", override_optimizer_config={"beta": 0.25})
    assert optimizer.rules[0].param_groups[0]["momentum"] == 0.25
    with pytest.raises(UserError, match="made already: give its class"):
        made(tiny(), optimizer=f"{tmp_path}/mine.py:made")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"optimizer": "admw"}, "actor.optim.optimizer=admw: did you mean adamw"),
        ({"optimizer": "AdamW8bit"}, "actor.optim.optimizer=AdamW8bit: did you mean adamw_8bit"),
        ({"optimizer": "AdamW8bit", "optimizer_impl": "no_such_module.optim"}, "No module named 'no_such_module'"),
        ({"override_optimizer_config": {"bta": 1}}, "unexpected keyword argument 'bta'"),
        ({"optimizer": "sgd", "override_optimizer_config": {"momentum": -1}}, "Invalid momentum value: -1"),
        ({"override_optimizer_config": {"lr": 1}}, "multiple values for keyword argument 'lr'"),
        ({"optimizer": "LBFGS"}, "actor.optim.optimizer=LBFGS.step cannot be called"),
    ],
)
def test_mistakes_are_one_line_before_a_model_is_loaded(fields, says):
    config = Config()
    for name, value in fields.items():
        setattr(config.actor.optim, name, value)

    def check():
        own_objects(config)
        try_optimizer(config.actor.optim, "actor.optim")

    with pytest.raises(UserError, match=says) as caught:
        check()
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UserError, match=r"run pip install \"agentrl\[torchao\]\""):
        try_optimizer(Optim(optimizer="adamw_8bit"), "optim")


def test_a_critic_has_its_own_or_the_actor_s():
    actor = Optim(optimizer="muon", override_optimizer_config={"momentum": 0.8})
    assert optimizer_name(inherited(CriticOptim(), actor)) == "muon"
    own = CriticOptim(optimizer="AdamW", optimizer_impl="torchao.optim", override_optimizer_config={"eps": 0.1})
    found = inherited(own, actor)
    assert (optimizer_name(found), found.override_optimizer_config) == ("torchao.optim.AdamW", {"eps": 0.1})


def test_estimates_know_what_an_optimizer_keeps():
    assert state_bytes(Optim(optimizer="SGD", optimizer_impl="torch.optim", override_optimizer_config={})) == 4
    assert [state_bytes(Optim(optimizer=name)) for name in ("adamw", "AdamW", "adamw_8bit", "RMSprop")] == [8, 8, 2, 8]


@pytest.mark.parametrize("bits", [16, 8])
def test_a_loss_falls_as_with_moments_in_float32(bits):
    """A linear model is fitted; the curves differ by a few percent, and a second moment falls where gradients do."""
    if bits == 8:
        pytest.importorskip("torchao")
    draw = torch.Generator().manual_seed(0)
    inputs, wanted = torch.randn(256, 64, generator=draw), torch.randn(64, 64, generator=draw)

    def curve(name):
        module = torch.nn.Linear(64, 64, bias=False)
        torch.nn.init.zeros_(module.weight)
        optimizer = made(module, optimizer=name, lr=0.02)
        losses = []
        for _ in range(120):
            loss = (module(inputs) - inputs @ wanted.T).square().mean()
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
        return torch.tensor(losses), plain(optimizer._state(module.weight)["exp_avg_sq"]).float().mean()

    (expected, moment), (found, rounded) = curve("adamw"), curve(f"adamw_{bits}bit")
    assert expected[-1] < expected[0] / 50
    assert torch.allclose(found, expected, rtol=0.2, atol=0.02 * float(expected[0]))
    assert bits == 8 or float(rounded) == pytest.approx(float(moment), rel=0.1)


def test_rounding_at_random_keeps_the_mean():
    draw = torch.Generator().manual_seed(0)
    value = torch.full((1 << 16,), 1.0 + 2.0**-10)  # bfloat16 has 1 and 1 + 2**-7
    for sign in (1.0, -1.0):
        found = rounded_at_random(value * sign, draw)
        assert set(found.unique().tolist()) == {sign, sign * (1.0 + 2.0**-7)}
        assert float(found.mean() - value[0] * sign) == pytest.approx(0.0, abs=1e-4)
        assert torch.equal(found.bfloat16().float(), found)


@pytest.mark.parametrize(("saved", "resumed"), [("adamw", "16"), ("16", "adamw"), ("adamw", "8"), ("8", "16")])
def test_a_checkpoint_goes_on_in_other_bits(saved, resumed):
    first, second = (name if name == "adamw" else f"adamw_{name}bit" for name in (saved, resumed))
    if "8" in (saved, resumed):
        pytest.importorskip("torchao")
    module = tiny()
    one, other = made(module, optimizer=first), made(module, optimizer=second)
    take(one, range(3))
    other.load_state_dict(one.state_dict())
    for parameter in other.parameters:
        mine, theirs = one._state(parameter), other._state(parameter)
        assert float(theirs["step"]) == 3
        assert torch.allclose(plain(mine["exp_avg"]).float(), plain(theirs["exp_avg"]).float(), atol=0.02, rtol=0.1)
    take(other, range(3, 4))
