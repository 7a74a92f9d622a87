"""Learning rates over a run, and which parameters decay."""

from math import cos, pi

import pytest
import torch
from torch import nn

from agentrl.config.schema import Optim
from agentrl.core.errors import UserError
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.schedules import lr_factor


def rates(kind, total=10, warmup=0, **more):
    return [rate(step, kind, total, warmup, **more) for step in range(total)]


def rate(step, kind, total=10, warmup=0, **more):
    return lr_factor(Optim(lr_scheduler_type=kind, lr_warmup_steps=warmup, **more), step, total)


def test_schedules():
    assert rates("constant", total=3) == [1.0, 1.0, 1.0]
    assert rates("constant", total=4, warmup=2) == [0.5, 1.0, 1.0, 1.0]
    assert rates("linear", total=4) == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates("linear", total=4, min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert rates("cosine", total=4) == pytest.approx([0.5 * (1 + cos(pi * i / 4)) for i in range(4)])
    assert rates("cosine", total=4, warmup=2, min_lr_ratio=0.1) == pytest.approx([0.5, 1.0, 1.0, 0.55])
    assert rate(99, "cosine", min_lr_ratio=0.1) == pytest.approx(0.1)
    assert rate(5, "cosine", num_cycles=1.0) == pytest.approx(0.0)


def test_wsd_warms_up_stays_and_falls():
    found = rates("wsd", 22, 2, min_lr_ratio=0.1, stable_ratio=0.75)
    assert found[:2] == [0.5, 1.0]
    assert found[2:17] == [1.0] * 15
    assert found[17:] == pytest.approx([1.0, 0.82, 0.64, 0.46, 0.28])
    assert rate(22, "wsd", 22, 2, min_lr_ratio=0.1) == pytest.approx(0.1)


def test_the_lowest_rate_is_a_share_of_the_highest():
    def last(**fields):
        optim = Optim(lr=1e-3, lr_scheduler_type="linear", **fields)
        optimizer = Optimizer(nn.Linear(2, 2), optim, grad_clip=1.0, total_steps=4)
        optimizer.schedule_step = 4
        return optimizer.lr

    assert last() == 0.0
    assert last(min_lr_ratio=0.5) == pytest.approx(5e-4)


def test_an_unknown_schedule_is_named():
    with pytest.raises(UserError, match="lr_scheduler_type=steps: choose constant, linear, cosine, wsd"):
        rates("steps")


def model():
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))


def test_norms_and_biases_do_not_decay():
    module = model()
    optimizer = Optimizer(module, Optim(lr=0.1, weight_decay=0.5), grad_clip=1.0, total_steps=1)
    decay = {id(p): group["weight_decay"] for group in optimizer.rules[0].param_groups for p in group["params"]}
    assert {n: decay[id(p)] for n, p in module.named_parameters()} == {
        "0.weight": 0.5,
        "1.weight": 0.5,
        "1.bias": 0.0,
        "2.weight": 0.0,
        "2.bias": 0.0,
    }


def test_the_warm_up_is_steps_or_a_share():
    def first(**settings):
        return Optimizer(model(), Optim(lr=1.0, **settings), grad_clip=1.0, total_steps=100).lr

    assert first() == 1.0
    assert first(lr_warmup_steps=4) == 0.25
    assert first(lr_warmup_steps=0.1) == 0.1
    assert first(lr_warmup_steps=1.0) == 0.01
    assert first(lr_warmup_steps=1) == 1.0


def test_clipping_scales_and_reports_the_norm_before():
    module = model()
    optimizer = Optimizer(module, Optim(lr=0.0), grad_clip=0.5, total_steps=1)
    seen = {}
    optimizer.rules[0].step = lambda: seen.update(
        norm=torch.nn.utils.get_total_norm([p.grad for p in module.parameters()])
    )
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    numel = sum(p.numel() for p in module.parameters())
    assert optimizer.step() == pytest.approx(numel**0.5)
    assert seen["norm"].item() == pytest.approx(0.5, rel=1e-4)
    assert all(p.grad is None for p in module.parameters())


def test_betas_and_decay_reach_adamw():
    optimizer = Optimizer(model(), Optim(betas=[0.8, 0.95], weight_decay=0.3), grad_clip=1.0, total_steps=1)
    assert optimizer.rules[0].param_groups[0]["betas"] == (0.8, 0.95)
    assert optimizer.rules[0].param_groups[0]["weight_decay"] == 0.3


def test_a_resumed_run_takes_its_rates_from_the_configuration():
    old = Optimizer(model(), Optim(lr=0.1), grad_clip=1.0, total_steps=10)
    new = Optimizer(model(), Optim(lr=0.2, weight_decay=0.7), grad_clip=1.0, total_steps=10)
    old.advance()
    new.load_state_dict(old.state_dict())
    assert new.schedule_step == 1
    assert new.rules[0].param_groups[0]["lr"] == 0.2
    assert new.rules[0].param_groups[0]["weight_decay"] == 0.7
