"""Estimators and losses registered as verl has them, and functions of one's own named by their path."""

import importlib
from collections import defaultdict
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import ADVANTAGES, POLICY_LOSSES, bind_loss, estimate
from agentrl.algorithms.advantages import KEY
from agentrl.algorithms.segments import sequence_of
from agentrl.config.checks.algorithm import critic_fits, loss_options
from agentrl.config.schema import Actor, Algorithm, PolicyLoss
from agentrl.config.validate import validate
from agentrl.core.errors import UserError
from agentrl.core.plugins import import_external
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.update.actor import loss_of
from agentrl_verl import modules
from agentrl_verl.padded import rows_of
from tests.algorithms.packings import Packing, packings
from tests.algorithms.verl_code import functions, masked, needs_verl
from tests.registries import scoped
from tests.training.test_actor import LENGTHS, actor_of, assert_same, gradient_of
from tests.training.test_objective import off_policy
from tests.training.tiny import random_batch, tiny

modules.provide()
few = settings(max_examples=15, deadline=None)

ESTIMATORS = """
from collections import defaultdict
import torch
import verl.utils.torch_functional as verl_F
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_adv_estimator_fn, register_adv_est

@register_adv_est("own_grpo")
def own_grpo(token_level_rewards, response_mask, index, epsilon=1e-6, config=None, **kwargs):
    assert config.gamma == 1.0 and config.get("adv_estimator") == "own_grpo" and config["lam"] == 1.0
    scores = token_level_rewards.sum(dim=-1)
    groups = defaultdict(list)
    for i, uid in enumerate(index):
        groups[uid].append(i)
    for rows in groups.values():
        group = scores[rows].clone()
        std = group.std() if len(rows) > 1 else torch.tensor(1.0)
        scores[rows] = (group - group.mean()) / (std + epsilon) if std > 1e-6 else 0 * group
    advantages = scores.unsqueeze(-1) * response_mask
    return advantages, advantages

@register_adv_est("own_gae")
def own_gae(token_level_rewards, values, response_mask, gamma, lam):
    return get_adv_estimator_fn(AdvantageEstimator.GAE)(token_level_rewards, values, response_mask, gamma, lam)

@register_adv_est("own_remax")
def own_remax(token_level_rewards, reward_baselines, response_mask, config=None, **kwargs):
    returns = (token_level_rewards * response_mask).flip(-1).cumsum(-1).flip(-1)
    return (returns - reward_baselines[:, None]) * response_mask, returns

@register_adv_est("own_nan")
def own_nan(token_level_rewards, response_mask, **kwargs):
    return token_level_rewards / 0, token_level_rewards

@register_adv_est("own_short")
def own_short(token_level_rewards, response_mask, **kwargs):
    return token_level_rewards[:, 1:], token_level_rewards

@register_adv_est("own_scores")
def own_scores(token_level_rewards, response_mask, index, config, **kwargs):
    return token_level_rewards.sum(-1), token_level_rewards.sum(-1)
"""

LOSSES = """
import torch
import verl.utils.torch_functional as verl_F
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

def losses(old_log_prob, log_prob, advantages, low, high, c):
    gap = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(gap)
    most = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - low, 1 + high))
    return torch.where(advantages < 0, torch.min(-advantages * c, most), most), gap

def clips(config):
    low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio
    return low, high, config.get("clip_ratio_c", 3.0)

@register_policy_loss("clip_of_0_5")
def of_0_5(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None):
    mat, gap = losses(old_log_prob, log_prob, advantages, *clips(config))
    loss = agg_loss(loss_mat=mat, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    kl = verl_F.masked_mean(-gap, response_mask)
    return loss, torch.tensor(0.25), kl, torch.tensor(0.0)

@register_policy_loss("clip_of_0_7")
def of_0_7(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
           rollout_is_weights=None):
    mat, gap = losses(old_log_prob, log_prob, advantages, *clips(config))
    if rollout_is_weights is not None:
        mat = mat * rollout_is_weights
    loss = agg_loss(loss_mat=mat, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/pg_clipfrac": 0.25, "mine/gap": verl_F.masked_mean(gap.abs(), response_mask).detach()}

@register_policy_loss("clip_by_hand")
def by_hand(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
    mat, _ = losses(old_log_prob, log_prob, advantages, *clips(config))
    if loss_agg_mode == "token-mean":
        return verl_F.masked_mean(mat, response_mask)
    if loss_agg_mode == "seq-mean-token-mean":
        return verl_F.masked_mean(mat, response_mask, axis=-1).mean()
    total = (mat * response_mask).sum(-1).mean()
    return total / 50 if loss_agg_mode.endswith("norm") else total

@register_policy_loss("whatever_the_mode")
def whatever(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, **kwargs):
    mat, _ = losses(old_log_prob, log_prob, advantages, *clips(config))
    return agg_loss(loss_mat=mat, loss_mask=response_mask, loss_agg_mode="seq-mean-token-mean"), {}

@register_policy_loss("no_number")
def no_number(old_log_prob, log_prob, advantages, response_mask, **kwargs):
    return -advantages * log_prob, {}

@register_policy_loss("nan_loss")
def nan_loss(old_log_prob, log_prob, advantages, response_mask, **kwargs):
    return (log_prob / 0).sum(), {}

@register_policy_loss("no_gradient")
def no_gradient(old_log_prob, log_prob, advantages, response_mask, **kwargs):
    return (log_prob.detach() * response_mask).sum(), {}

@register_policy_loss("another_signature")
def another_signature(logp, adv):
    return logp.sum()
"""


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registered")
    with scoped(ADVANTAGES, POLICY_LOSSES):
        for name, source in {"estimators": ESTIMATORS, "losses": LOSSES}.items():
            (folder / f"own_{name}.py").write_text(source)
            import_external(str(folder / f"own_{name}.py"), "model")
        yield


def values_of(packing: Packing) -> torch.Tensor:
    return torch.randn(packing.rewards.numel(), generator=torch.Generator().manual_seed(1))


def options(name: str, packing: Packing) -> dict:
    return {
        "gamma": 1.0,
        "lam": 0.9,
        "values": values_of(packing),
        "baselines": 0.25 * packing.trajectory.float(),
        "config": Algorithm(adv_estimator=name),
    }


def assert_close(mine: torch.Tensor, built_in: torch.Tensor) -> None:
    torch.testing.assert_close(mine, built_in, rtol=1e-4, atol=1e-5)


@few
@given(packings())
def test_a_copy_of_grpo_is_grpo(packing):
    """Several sequences of a trajectory are one row: a rollout has one vote in its group."""
    mine, returns = estimate("own_grpo", *packing.columns, **options("own_grpo", packing))
    built_in, _ = estimate("grpo", *packing.columns)
    assert_close(mine, built_in)
    assert_close(returns, built_in)


@few
@given(packings())
def test_a_copy_of_gae_has_its_returns(packing):
    if packing.mask.sum() < 2:
        return
    _, returns = estimate("own_gae", *packing.columns, **options("own_gae", packing))
    _, built_in = estimate("gae", *packing.columns, **options("gae", packing))
    assert_close(returns, built_in)


@few
@given(packings())
def test_a_copy_of_remax_gets_the_greedy_scores(packing):
    mine, _ = estimate("own_remax", *packing.columns, **options("own_remax", packing))
    built_in, _ = estimate("remax", *packing.columns, **options("remax", packing))
    assert_close(mine, built_in)


def test_what_an_estimator_names_is_asked_for():
    assert ADVANTAGES.keywords("own_gae", KEY) == {"values", "gamma", "lam", "config"}
    assert ADVANTAGES.keywords("own_remax", KEY) == {"baselines", "config"}
    assert ADVANTAGES.keywords("own_grpo", KEY) == {"config"}


SOME = Packing(
    rewards=torch.tensor([0.0, 1.0, 0.5]),
    mask=torch.tensor([False, True, True]),
    cu_seqlens=torch.tensor([0, 3], dtype=torch.int32),
    trajectory=torch.tensor([0]),
    group=torch.tensor([0]),
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_nan", "adv_estimator=own_nan: its advantages are NaN or infinite at 2 of 2 model tokens"),
        ("own_short", r"adv_estimator=own_short: it gave \(1, 1\) for token_level_rewards of the shape \(1, 2\)"),
        ("own_scores", r"adv_estimator=own_scores: it gave \(1,\) for token_level_rewards of the shape"),
        ("own_grpo", "adv_estimator=own_grpo: AssertionError"),
        ("own_best", r"adv_estimator=own_best: did you mean own_.* choose gae, .*own_grpo"),
    ],
)
def test_an_estimator_s_mistake_is_one_line(name, message):
    with pytest.raises(UserError, match=message):
        estimate(name, *SOME.columns, config=Algorithm(adv_estimator="another"))


def test_a_name_that_is_taken_is_refused():
    from verl.trainer.ppo.core_algos import register_adv_est

    for name in ("grpo", "own_grpo"):
        with pytest.raises(ValueError, match=f"{name!r} is there already"):
            register_adv_est(name)(lambda token_level_rewards: None)


MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.prevents(
    "a custom loss takes its mean over each micro-batch, so its gradient depends on the micro-batch size"
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["clip_of_0_5", "clip_of_0_7", "clip_by_hand"])
def test_a_copy_of_the_clipped_loss_has_its_gradient_under_every_cut(name, mode):
    module, batch = off_policy()
    batch.trajectory = torch.arange(batch.num_sequences)
    shared = {"loss_agg_mode": mode, "ppo_micro_batch_size_per_gpu": 3, "loss_scale_factor": 50}
    mine = gradient_of(module, batch, policy_loss=PolicyLoss(name), **shared)
    assert_same(mine, gradient_of(module, batch, **shared))


def test_a_loss_with_a_mean_of_its_own_is_cut_exactly():
    module, batch = off_policy()
    batch.trajectory = torch.arange(batch.num_sequences)
    mine = gradient_of(module, batch, policy_loss=PolicyLoss("whatever_the_mode"), ppo_micro_batch_size_per_gpu=1)
    assert_same(mine, gradient_of(module, batch, loss_agg_mode="seq-mean-token-mean"))


def test_importance_weights_are_multiplied_once():
    from agentrl.config.schema import RolloutCorrection

    module, batch = off_policy()
    correction = RolloutCorrection(rollout_is="token", rollout_is_threshold=1.5)
    moved = []
    for name in ("vanilla", "clip_of_0_7"):
        actor = actor_of(deepcopy(module), grad_clip=0.0, policy_loss=PolicyLoss(name))
        actor.rollout_correction = correction
        metrics = actor.update(batch)
        moved.append((metrics["actor/grad_norm"], metrics["actor/pg_loss"], metrics["rollout_is/mean"]))
    assert moved[0] == pytest.approx(moved[1], rel=1e-4)


def test_its_metrics_are_reported():
    metrics = actor_of(tiny(), policy_loss=PolicyLoss("clip_of_0_7")).update(random_batch(LENGTHS))
    assert metrics["actor/pg_clipfrac"] == pytest.approx(0.25)
    assert metrics["mine/gap"] == 0.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_number", r"loss_mode=no_number: its loss is \(8, 1?\d\); return one number: agg_loss"),
        ("nan_loss", "loss_mode=nan_loss: its losses are NaN or infinite"),
        ("no_gradient", "loss_mode=no_gradient: its losses have no gradient"),
        ("another_signature", "loss_mode=another_signature: TypeError: .*logp"),
    ],
)
def test_a_loss_s_mistake_is_one_line(name, message):
    module, batch = off_policy()
    with pytest.raises(UserError, match=message):
        gradient_of(module, batch, policy_loss=PolicyLoss(name))


OWN = """
import torch

def half_grpo(rewards, mask, cu_seqlens, trajectory, group, *, norm_by_std=True):
    from agentrl.algorithms import estimate
    return 0.5 * estimate("grpo", rewards, mask, cu_seqlens, trajectory, group, norm_by_std=norm_by_std)[0]

def valued(rewards, mask, cu_seqlens, trajectory, group, *, values):
    return rewards - values, rewards

def plain(logprobs, old_logprobs, advantages, *, mask, low, config):
    assert config.grad_clip == 1.0
    return -advantages * logprobs, {"mine": mask.float()}

def scaled(logprobs, old_logprobs, advantages, *, low, scale=2.0):
    return scale * logprobs

def sums(logprobs, old_logprobs, advantages):
    return (advantages * logprobs).sum()

def four(rewards, mask, cu_seqlens, trajectory):
    return rewards

def wants(rewards, mask, cu_seqlens, trajectory, group, *, images):
    return rewards

async def later(rewards, mask, cu_seqlens, trajectory, group):
    return rewards
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_functions.py").write_text(OWN)


@pytest.mark.usefixtures("own")
def test_functions_of_one_s_own_by_their_path():
    halves, _ = estimate("own_functions.py:half_grpo", *SOME.columns)
    assert halves.tolist() == [0, 0, 0]
    assert ADVANTAGES.keywords("own_functions.half_grpo", KEY) == {"norm_by_std"}
    assert ADVANTAGES.keywords("own_functions.py:valued", KEY) == {"values"}
    losses, details = loss_of(Actor(policy_loss=PolicyLoss("own_functions.py:plain")))(
        torch.tensor([0.0, -1.0, -2.0], requires_grad=True),
        torch.zeros(3),
        torch.ones(3),
        mask=SOME.mask,
        cu_seqlens=SOME.cu_seqlens,
    )
    assert losses.tolist() == [0, 1, 2]
    assert details["mine"].tolist() == [0, 1, 1]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_functions.py:four", r"takes \(rewards, mask, cu_seqlens, trajectory\): write def name\(rewards, .*group"),
        ("own_functions.py:wants", "nothing gives it 'images'; after the star it may name values, baselines"),
        ("own_functions.py:later", "is no plain function"),
        ("own_functions.py:halve", "own_functions.py has no 'halve': it has half_grpo, valued"),
        ("nowhere.py:halve", "nowhere.py does not exist"),
    ],
)
def test_a_path_s_mistake_is_one_line(name, message):
    with pytest.raises(UserError, match=message) as error:
        ADVANTAGES.keywords(name, KEY)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("own")
def test_a_loss_has_options_of_its_own():
    def losses(**options):
        policy_loss = PolicyLoss("own_functions.py:scaled", options=options)
        loss_options(Actor(policy_loss=policy_loss))
        loss = loss_of(Actor(policy_loss=policy_loss))
        ones = torch.ones(3)
        return loss(ones, ones, ones, mask=SOME.mask, cu_seqlens=SOME.cu_seqlens)[0].tolist()

    assert losses() == [0, 2, 2]
    assert losses(scale=3.0) == [0, 3, 3]
    for name in ("scales", "low"):
        with pytest.raises(UserError, match=f"options.{name}: .*:scaled has no such option; it reads scale"):
            losses(**{name: 1.0})


@pytest.mark.usefixtures("own")
def test_a_loss_of_another_shape_is_refused():
    loss = bind_loss("own_functions.py:sums")
    with pytest.raises(UserError, match=r"its losses are \(\); they must be a tensor of the shape \(3,\)"):
        loss(torch.zeros(3), torch.zeros(3), torch.ones(3), mask=SOME.mask, cu_seqlens=SOME.cu_seqlens)


def test_names_are_looked_up_before_anything_slow(tmp_path, monkeypatch):
    from agentrl.config import compose

    monkeypatch.chdir(tmp_path)
    (tmp_path / "registers.py").write_text(
        "from verl.trainer.ppo.core_algos import register_adv_est\n"
        "@register_adv_est('of_the_module')\ndef f(token_level_rewards, response_mask, values, **kwargs):\n    ...\n"
    )
    base = ["model.path=m", "data.train_files=x", "model.external_lib=registers"]

    def check(*overrides):
        config = compose([*base, *overrides], config_name="train", checks=())
        return validate(config, (critic_fits,))

    assert check("algorithm.adv_estimator=of_the_module") == []
    with pytest.raises(UserError, match="critic.enable=false: .*=of_the_module needs a critic"):
        check("algorithm.adv_estimator=of_the_module", "critic.enable=false")
    with pytest.raises(UserError, match="adv_estimator=of_another: choose gae, .*of_the_module"):
        check("algorithm.adv_estimator=of_another")
    with pytest.raises(UserError, match="loss_mode=of_another: choose vanilla"):
        check("actor.policy_loss.loss_mode=of_another")
    with pytest.raises(UserError, match=r"file.py:function, or a name that model.external_lib registers"):
        check("actor.policy_loss.loss_mode=of_another")


CORE = "trainer/ppo/core_algos.py"
ROWS = st.integers(2, 6)


@needs_verl
@few
@given(ROWS, st.integers(2, 5), st.integers(0, 99))
def test_verl_s_functions_under_verl_s_names(rows, width, seed):
    from agentrl_verl import core_algos as ours

    draw = torch.Generator().manual_seed(seed)
    names = ("compute_gae_advantage_return", "compute_grpo_outcome_advantage", "agg_loss")
    theirs = functions(
        CORE, names, verl_F=importlib.import_module("agentrl_verl.tensors"), np=np, defaultdict=defaultdict
    )
    mask = torch.ones(rows, width, dtype=torch.long)
    mask[0, -1:] = 0
    rewards, values = (torch.randn(rows, width, generator=draw) * mask for _ in range(2))
    index = np.array([str(i // 2) for i in range(rows)], dtype=object)
    for mine, reference in zip(
        ours.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8),
        theirs.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference)
    for norm in (True, False):
        mine = ours.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=norm)[0]
        reference = theirs.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=norm)[0]
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)
    for mode in (*MODES, "token-sum"):
        torch.testing.assert_close(ours.agg_loss(rewards, mask, mode), theirs.agg_loss(rewards, mask, mode))


@needs_verl
@pytest.mark.parametrize("mode", [*MODES, "token-sum"])
@pytest.mark.parametrize("name", ["vanilla", "gspo", "geo_mean", "sapo", "cispo", "gpg"])
def test_the_gradient_of_a_loss_is_verl_s_under_each_mean(name, mode):
    config = type(
        "ActorConfig", (SimpleNamespace,), {"get": lambda self, key, default=None: vars(self).get(key, default)}
    )
    names, function = ("agg_loss", f"compute_policy_loss_{name}"), f"compute_policy_loss_{name}"
    theirs = functions(CORE, names, verl_F=masked(), ActorConfig=config, DictConfig=type(None))
    ranges = {"clip_ratio": 0.2, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0}
    module, batch = off_policy()
    batch.trajectory, owner = torch.arange(batch.num_sequences), sequence_of(batch.cu_seqlens)
    batch.advantages = torch.linspace(-1, 1.3, batch.num_sequences)[owner] * batch.mask  # one a sequence
    info = {"dp_size": 1, "loss_scale_factor": 20}
    settings = config(**ranges, tau_pos=1.0, tau_neg=1.05, global_batch_info=info, policy_loss=SimpleNamespace())
    rows = rows_of(batch.mask, batch.cu_seqlens)
    logprobs = TokenLogprobs(module)(batch)[0]
    padded = [rows.pad(column) for column in (batch.old_logprobs, logprobs, batch.advantages, batch.mask.long())]
    loss, *_ = getattr(theirs, function)(*padded, loss_agg_mode=mode, config=settings)
    (loss[0] if isinstance(loss, tuple) else loss).backward()
    expected = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.zero_grad()
    mine = gradient_of(module, batch, policy_loss=PolicyLoss(name), loss_agg_mode=mode, **ranges)
    assert_same(mine, expected, tolerance=1e-4)


@needs_verl
def test_verl_s_masked_functions():
    ours, theirs = importlib.import_module("agentrl_verl.tensors"), masked()
    whiten = functions("utils/torch_functional.py", ("masked_mean", "masked_sum", "masked_var", "masked_whiten"))
    values, mask = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24).reshape(4, 6) % 3 > 0
    for axis in (None, 1):
        torch.testing.assert_close(ours.masked_mean(values, mask, axis), theirs.masked_mean(values, mask, axis))
        torch.testing.assert_close(ours.masked_sum(values, mask, axis), theirs.masked_sum(values, mask, axis))
    for shift in (True, False):
        mine, reference = ours.masked_whiten(values, mask, shift), whiten.masked_whiten(values, mask, shift)
        torch.testing.assert_close(mine, reference)


@needs_verl
@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3", "low_var_kl+", "k3+"])
def test_verl_s_kl(kind):
    from agentrl_verl.core_algos import kl_penalty

    theirs = functions(CORE, ("kl_penalty", "kl_penalty_forward"))
    logprob, ref = torch.randn(2, 5, requires_grad=True), torch.randn(2, 5)
    mine, reference = kl_penalty(logprob, ref, kind), theirs.kl_penalty(logprob, ref, kind)
    torch.testing.assert_close(mine, reference)
    gradients = [torch.autograd.grad(value.sum(), logprob)[0] for value in (mine, reference)]
    torch.testing.assert_close(*gradients)
