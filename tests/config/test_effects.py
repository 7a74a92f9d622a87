"""A key does something: with another value, the update of a tiny model comes out otherwise.

A key outside CASES reaches its reader in test_reach.py, or is set by a test of the room that reads it (changed.py finds
those). Each case trains two steps twice, once with the key as it is and once with another value. What is compared:
metrics, weights, and how often each model runs forward.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.tasks.models import tiny
from agentrl.training import Batch
from agentrl.training.learner import Learner
from tests.training.tiny import random_batch

pytestmark = pytest.mark.integration

LENGTHS = [7, 3, 9, 6]
LEARNS = ("actor.optim.lr=0.01",)
SHORT = ("actor.ppo_mini_batch_size=1",)
STEEP = (*LEARNS, *SHORT, "actor.ppo_epochs=2")
WARM = (*LEARNS, "actor.optim.lr_warmup_steps=2")
COSINE = (*LEARNS, "actor.optim.lr_scheduler_type=cosine")
KL_LOSS = (*LEARNS, "actor.use_kl_loss=true", "actor.kl_loss_coef=0.5")
CRITIC = ("algorithm.adv_estimator=gae", "critic.optim.lr=0.01")
CRITIC_EPOCHS = (*CRITIC, "critic.ppo_mini_batch_size=1", "critic.ppo_epochs=2")
BYPASS = (*LEARNS, "algorithm.rollout_correction.bypass_mode=true")
TOKENS = "algorithm.rollout_correction.rollout_rs=token"
REJECTING = (*LEARNS, "algorithm.rollout_correction.rollout_rs_threshold=1.0001")
CORRECTED = (*LEARNS, "algorithm.rollout_correction.rollout_is_threshold=1.0001")
LORA = (*LEARNS, "model.lora_rank=2")
SAPO = (*STEEP, "actor.policy_loss.loss_mode=sapo")

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "actor.ppo_mini_batch_size": ("1", LEARNS),
    "actor.ppo_micro_batch_size_per_gpu": ("1", (*LEARNS, "actor.use_dynamic_bsz=false")),
    "actor.use_dynamic_bsz": ("false", (*LEARNS, "actor.ppo_max_token_len_per_gpu=16")),
    "actor.ppo_max_token_len_per_gpu": ("16", LEARNS),
    "actor.ppo_epochs": ("2", LEARNS),
    "actor.shuffle": ("true", STEEP),
    "actor.grad_clip": ("0.001", (*LEARNS, "actor.optim.weight_decay=0")),
    "actor.clip_ratio": ("0.0001", STEEP),
    "actor.clip_ratio_low": ("0.0001", STEEP),
    "actor.clip_ratio_high": ("0.0001", STEEP),
    "actor.clip_ratio_c": ("1.0001", (*STEEP, "actor.clip_ratio_high=1000")),
    "actor.policy_loss.loss_mode": ("gspo", STEEP),
    "actor.policy_loss.options": ("{tau_pos: 3}", SAPO),
    "actor.loss_agg_mode": ("seq-mean-token-mean", LEARNS),
    "actor.loss_scale_factor": ("3", (*LEARNS, "actor.loss_agg_mode=seq-mean-token-sum-norm")),
    "actor.entropy_coeff": ("0.5", LEARNS),
    "actor.use_kl_loss": ("true", LEARNS),
    "actor.kl_loss_coef": ("2", KL_LOSS),
    "actor.kl_loss_type": ("mse", KL_LOSS),
    "actor.optim.lr": ("0.02", ()),
    "actor.optim.lr_scheduler_type": ("cosine", LEARNS),
    "actor.optim.lr_warmup_steps": ("5", LEARNS),
    "actor.optim.min_lr_ratio": ("0.9", COSINE),
    "actor.optim.stable_ratio": ("0.0", (*LEARNS, "actor.optim.lr_scheduler_type=wsd")),
    "actor.optim.num_cycles": ("3", COSINE),
    "actor.optim.weight_decay": ("0.9", LEARNS),
    "actor.optim.optimizer": ("sgd", LEARNS),
    "actor.optim.override_optimizer_config": ("{eps: 0.1}", LEARNS),
    "actor.optim.betas": ("[0.5,0.9]", LEARNS),
    "actor.fsdp_config.mixed_precision.param_dtype": ("bfloat16", LEARNS),
    "algorithm.adv_estimator": ("gae", ()),
    "algorithm.vf_coef": ("0.25", CRITIC),
    "algorithm.use_kl_in_reward": ("true", LEARNS),
    "algorithm.rollout_correction.bypass_mode": ("true", LEARNS),
    "algorithm.rollout_correction.loss_type": ("reinforce", BYPASS),
    "algorithm.rollout_correction.rollout_is": ("sequence", LEARNS),
    "algorithm.rollout_correction.rollout_is_threshold": ("0.01", LEARNS),
    "algorithm.rollout_correction.rollout_is_mode": ("mask", CORRECTED),
    "algorithm.rollout_correction.rollout_is_batch_normalize": ("true", LEARNS),
    "algorithm.rollout_correction.rollout_is_all_terms": ("true", (*LEARNS, "actor.entropy_coeff=0.5")),
    "algorithm.rollout_correction.rollout_rs": ("token", REJECTING),
    "algorithm.rollout_correction.rollout_rs_threshold_lower": ("0.01", (*BYPASS, *REJECTING, TOKENS)),
    "critic.enable": ("true", ()),
    "critic.ppo_mini_batch_size": ("1", CRITIC),
    "critic.ppo_micro_batch_size_per_gpu": ("1", (*CRITIC, "actor.use_dynamic_bsz=false")),
    "critic.ppo_max_token_len_per_gpu": ("16", CRITIC),
    "critic.ppo_epochs": ("2", CRITIC),
    "critic.grad_clip": ("0.001", (*CRITIC, "critic.optim.weight_decay=0")),
    "critic.cliprange_value": ("0.0001", CRITIC_EPOCHS),
    "critic.loss_agg_mode": ("seq-mean-token-mean", CRITIC),
    "critic.optim.lr": ("0.5", CRITIC),
    "critic.optim.lr_scheduler_type": ("cosine", CRITIC),
    "critic.optim.lr_warmup_steps": ("5", CRITIC),
    "critic.optim.weight_decay": ("0.9", CRITIC),
    "critic.optim.optimizer": ("RMSprop", CRITIC),
    "critic.optim.override_optimizer_config": ("{eps: 0.1}", CRITIC),
    "critic.model.lora_rank": ("2", CRITIC),
    "model.dtype": ("bfloat16", LEARNS),
    "model.lora_rank": ("2", LEARNS),
    "model.lora_alpha": ("1", LORA),
    "model.target_modules": ("[q_proj]", LORA),
    "model.exclude_modules": ("[q_proj]", LORA),
    "model.override_config": ("{rms_norm_eps: 0.5}", LEARNS),
    "rollout.temperature": ("0.5", LEARNS),
    "rollout.do_sample": ("false", (*LEARNS, "rollout.temperature=0.5")),
    "trainer.critic_warmup": ("1", (*CRITIC, *LEARNS)),
    "trainer.seed": ("9", LORA),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("effects")
    (home / "text.jsonl").write_text(json.dumps({"prompt": "What is 1 and 1?"}) + "\n")
    shape = tiny.TinyShape(vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=1)  # fmt: skip
    tiny.prepare(home / "model", [home / "text.jsonl"], shape=shape, seed=0)
    return home / "model"


@cache
def base_config(model: Path) -> Config:
    return compose([f"model.path={model}", "trainer.device=cpu"], checks=())


def with_settings(config: Config, settings: Sequence[str]) -> Config:
    """The configuration with values that are written as on a command line; far quicker than to compose it again."""
    config = deepcopy(config)
    for path, _, value in (setting.partition("=") for setting in settings):
        *sections, key = path.split(".")
        section: Any = reduce(getattr, sections, config)
        assert hasattr(section, key), path
        setattr(section, key, yaml.safe_load(value))
    return config


@cache
def outcome(model: Path, *settings: str) -> Any:
    """Metrics of two steps, the weights' sums, and how often each model ran forward."""
    learner = Learner(with_settings(base_config(model), settings))
    learner.prepare(10)
    counts: list[str] = []
    others = (learner.critic, learner.reference)
    models = {"policy": learner.model} | {type(each).__name__: each.model for each in others if each is not None}
    for name, each in models.items():
        layer = next(part for part in each.module.modules() if type(part).__name__.endswith("DecoderLayer"))
        layer.register_forward_hook(lambda *_, name=name: counts.append(name))
    metrics = [known(learner.update(ready(learner, seed))) for seed in range(2)]
    sums = [float(parameter.double().abs().sum()) for parameter in learner.model.module.parameters()]
    return metrics, sums, sorted(counts)


def ready(learner: Learner, seed: int) -> Batch:
    batch = learner.compute_logprobs(random_batch(LENGTHS, seed=seed))
    batch.returns = torch.linspace(0, 1, batch.num_tokens) * batch.mask
    return batch


def known(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(("actor/", "critic/"))}


@pytest.mark.parametrize("key", CASES)
def test_another_value_changes_the_update(key: str, model: Path) -> None:
    value, base = CASES[key]
    assert outcome(model, *base) != outcome(model, *base, f"{key}={value}")
