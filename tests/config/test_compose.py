"""Files, presets and overrides become one typed configuration."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.config import compose, resolve, to_yaml
from agentrl.config.schema import Actor, Config, Data, Trainer
from agentrl.config.schema.sft import SftConfig
from agentrl.config.validate import SETTINGS
from agentrl.core import resources
from agentrl.core.errors import UserError

pytestmark = pytest.mark.integration


def unchecked(*overrides: str, **where: str) -> Config:
    return compose(overrides, checks=(), **where)


def test_the_default_file_only_lacks_model_rows_and_reward(ready: list[str]) -> None:
    config = compose(ready)
    assert type(config) is Config
    assert type(config.actor) is Actor
    assert config.rollout.n == 8
    assert config.algorithm.adv_estimator == "grpo"


def test_overrides_reach_every_kind_of_value() -> None:
    config = unchecked(
        "rollout.n=3",
        "actor.optim.lr=1e-4",
        "actor.optim.betas=[0.9,0.95]",
        "data.val_files=[a.parquet,b.jsonl]",
        "rollout.multi_turn.enable=true",
        "rollout.val_kwargs={n: 2, top_p: 0.5}",
        "trainer.logger=console",
        "trainer.experiment_name='a, b=c'",
    )
    assert config.rollout.n == 3
    assert config.actor.optim.lr == pytest.approx(1e-4)
    assert config.actor.optim.betas == [0.9, 0.95]
    assert config.data.val_files == ["a.parquet", "b.jsonl"]
    assert config.rollout.multi_turn.enable is True
    assert (config.rollout.val_kwargs.n, config.rollout.val_kwargs.top_p) == (2, 0.5)
    assert config.trainer.logger == ["console"]
    assert config.trainer.experiment_name == "a, b=c"


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_hydras_signs_make_no_difference(sign: str) -> None:
    assert unchecked(f"{sign}rollout.n=5").rollout.n == 5
    assert unchecked(f"{sign}rollout.max_model_len=5").rollout.max_model_len == 5


def test_tilde_gives_back_the_default() -> None:
    assert unchecked("~rollout.n").rollout.n == 1
    assert unchecked("rollout.val_kwargs.n=4", "~rollout.val_kwargs").rollout.val_kwargs.n == 1
    assert unchecked("~actor_rollout_ref.rollout.n").rollout.n == 1
    assert unchecked("~rollout.n", "rollout.n=4").rollout.n == 4
    with pytest.raises(UserError, match="unknown key rollout.m"):
        unchecked("~rollout.m")


def test_null_unsets_what_may_be_unset() -> None:
    assert unchecked("rollout.max_model_len=7", "rollout.max_model_len=null").rollout.max_model_len is None


def test_open_mappings_take_any_name_and_keep_what_they_have() -> None:
    config = unchecked(
        "reward.custom_reward_function.reward_kwargs.alpha=0.5",
        "+reward.custom_reward_function.reward_kwargs.beta=[1,2]",
        "model.override_config.rope={theta: 1}",
    )
    assert config.reward.custom_reward_function.reward_kwargs == {"alpha": 0.5, "beta": [1, 2]}
    assert config.model.override_config == {"rope": {"theta": 1}}


def test_interpolations_follow_later_overrides() -> None:
    assert unchecked("trainer.experiment_name=x").trainer.default_local_dir == str(Path.cwd() / "runs/x")
    assert unchecked("trainer.seed='${rollout.n}'", "rollout.n=6").trainer.seed == 6
    assert unchecked("trainer.seed='${actor_rollout_ref.rollout.n}'", "rollout.n=6").trainer.seed == 6


def test_groups_choose_presets() -> None:
    config = unchecked("algorithm=dr_grpo")
    assert config.algorithm.norm_adv_by_std_in_grpo is False
    assert config.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    assert unchecked("algorithm=rloo", "algorithm.gamma=0.9").algorithm.adv_estimator == "rloo"


def test_what_is_printed_composes_to_the_same(tmp_path: Path, ready: list[str]) -> None:
    config = compose([*ready, "actor.optim.lr=1e-5", "trainer.experiment_name=again"])
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert compose(config_dir=str(tmp_path), config_name="again") == config


def test_every_shipped_experiment_and_preset_composes() -> None:
    root = Path(__file__).parents[2] / "configs"
    for file in root.glob("*.yaml"):
        schema = SftConfig if file.stem.endswith("sft") else Config
        assert type(compose(config_name=file.stem, schema=schema, checks=())) is schema
    for file in root.glob("*/*.yaml"):
        if file.parent.name not in ("templates", "environments", "recipes"):
            unchecked(f"{file.parent.name}={file.stem}")


def write(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_users_folder_comes_first_and_composes_with_ours(tmp_path: Path) -> None:
    write(tmp_path, "exp.yaml", "defaults: [train, {model: mine}, _self_]\nrollout: {n: 5}\n")
    write(tmp_path, "model/mine.yaml", "path: some/model\nlora_rank: 4\n")
    write(tmp_path, "algorithm/grpo.yaml", "# @package _global_\nalgorithm: {gamma: 0.5}\n")
    config = unchecked("algorithm=grpo", config_dir=str(tmp_path), config_name="exp")
    assert (config.rollout.n, config.model.path, config.model.lora_rank) == (5, "some/model", 4)
    assert config.algorithm.gamma == 0.5, "the user's grpo hides ours"
    assert unchecked("algorithm=rloo", config_dir=str(tmp_path), config_name="exp.yaml").algorithm.gamma == 1.0


def test_our_file_with_a_users_presets(tmp_path: Path) -> None:
    write(tmp_path, "model/mine.yaml", "path: some/model\n")
    assert unchecked("model=mine", config_dir=str(tmp_path)).model.path == "some/model"


VERL_FILE = """
hydra:
  searchpath:
    - file://verl/trainer/config

defaults:
  - ppo_trainer
  - _self_

data:
  max_prompt_length: 1024
  max_response_length: 2048
  train_batch_size: 256
  return_raw_chat: True

actor_rollout_ref:
  hybrid_engine: True
  actor:
    ppo_mini_batch_size: 64
    optim: {lr: 1e-5, warmup_style: cosine}
    fsdp_config: {param_offload: False}
  rollout:
    name: hf
    n: 16
    prompt_length: ${data.max_prompt_length}
    response_length: ${data.max_response_length}
    log_prob_use_dynamic_bsz: ${actor_rollout_ref.actor.use_dynamic_bsz}
    temperature: ${oc.select:actor_rollout_ref.nothing,0.7}
    multi_turn:
      enable: True
      max_turns: 5
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}

reward_model: {enable: False, reward_manager: naive}
custom_reward_function: {path: null, name: score, reward_kwargs: {scale: 2}}
trainer:
  experiment_name: ${actor_rollout_ref.rollout.n}-answers
  critic_warmup: 0
"""


def test_a_file_written_for_verl_runs_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "exp.yaml", VERL_FILE)
    resolved = resolve(["data.max_response_length=99"], config_dir=str(tmp_path), config_name="exp", checks=SETTINGS)
    config = resolved.config
    assert (config.rollout.n, config.rollout.temperature, config.rollout.multi_turn.max_assistant_turns) == (16, 0.7, 5)
    assert config.rollout.multi_turn.enable is True
    assert (config.actor.optim.lr, config.actor.optim.lr_scheduler_type) == (1e-5, "cosine")
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 99)
    assert config.reward.custom_reward_function.name == "score"
    assert config.reward.custom_reward_function.reward_kwargs == {"scale": 2}
    assert config.trainer.experiment_name == "16-answers"
    assert "hydra.searchpath: verl/trainer/config does not exist" in resolved.notes
    assert len(resolved.notes) == len(set(resolved.notes))


def test_old_names_in_a_file_win_over_presets_and_lose_to_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, "exp.yaml", "defaults: [train, _self_]\nactor_rollout_ref: {rollout: {n: 5}}\n")
    where = {"config_dir": str(tmp_path), "config_name": "exp"}
    assert unchecked(**where).rollout.n == 5
    assert unchecked("rollout.n=6", **where).rollout.n == 6
    assert unchecked("actor_rollout_ref.rollout.n=7", **where).rollout.n == 7


def test_searchpath_of_the_chosen_file_is_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "more/model/far.yaml", "path: far/away\n")
    write(tmp_path, "own/exp.yaml", "hydra: {searchpath: ['file://more']}\ndefaults: [train, {model: far}, _self_]\n")
    monkeypatch.chdir(tmp_path)
    assert unchecked(config_dir="own", config_name="exp").model.path == "far/away"


@dataclass
class Small:
    """Another command's configuration."""

    data: Data = field(default_factory=Data)
    """Rows."""
    trainer: Trainer = field(default_factory=Trainer)
    """Run."""


def test_other_schemas_compose_from_their_own_files(tmp_path: Path) -> None:
    write(tmp_path, "small.yaml", "data: {train_files: a.jsonl}\n")
    where = {"config_dir": str(tmp_path), "config_name": "small", "schema": Small}
    config = compose(["data.train_shuffle=false"], checks=(), **where)
    assert type(config) is Small
    assert (config.data.train_files, config.data.shuffle) == ("a.jsonl", False)
    with pytest.raises(UserError, match="unknown key rollout.n"):
        compose(["rollout.n=2"], **where)


def test_our_own_files_are_read_again_once_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(resources.share() / "configs", tmp_path / "configs")
    monkeypatch.setattr(resources, "share", lambda: tmp_path)
    for n in (3, 4):
        write(tmp_path, "configs/own.yaml", f"defaults: [train, _self_]\nrollout: {{n: {n}}}\n")
        os.utime(tmp_path / "configs/own.yaml", (n, n))
        config = compose(config_name="own", checks=())
        assert config.rollout.n == n
        config.rollout.n = config.rollout.val_kwargs.n = 99
    again = compose(config_name="own", checks=())
    assert (again.rollout.n, again.rollout.val_kwargs.n) == (4, 1)


def test_names_below_a_mapping_that_may_be_null_are_the_user_s() -> None:
    text = "override_optimizer_config.momentum=0.5"
    config = compose([f"actor.optim.{text}", f"critic.optim.{text}"], checks=())
    assert config.actor.optim.override_optimizer_config == {"momentum": 0.5}
    assert config.critic.optim.override_optimizer_config == {"momentum": 0.5}
    assert (
        compose(["actor.optim.override_optimizer_config=null"], checks=()).actor.optim == compose(checks=()).actor.optim
    )
