"""A name of an earlier version works as it did, with one line that says today's name."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config import compose, resolve, to_yaml
from agentrl.config.explain import explain
from agentrl.config.names import table
from agentrl.config.schema.commands import SCHEMAS
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError

pytestmark = pytest.mark.integration

PARTS = Path(__file__).with_name("old_keys.txt").read_text().split("\n\n")[1:]
TRAIN, SFT = (part.splitlines() for part in PARTS)
MOVED = {
    "actor.optim.lr_warmup_steps_ratio=0.1": "actor.optim.lr_warmup_steps=0.1",
    "critic.optim.lr_warmup_steps_ratio=0.1": "critic.optim.lr_warmup_steps=0.1",
    "actor.optim.min_lr=1e-7": "actor.optim.min_lr_ratio=0.1",
    "actor.policy_loss.clip_cov_lb=0.5": "actor.policy_loss.options.clip_cov_lb=0.5",
    "actor.policy_loss.clip_cov_ratio=0.1": "actor.policy_loss.options.clip_cov_ratio=0.1",
    "actor.policy_loss.clip_cov_ub=6.0": "actor.policy_loss.options.clip_cov_ub=6.0",
    "actor.policy_loss.kl_cov_ratio=0.1": "actor.policy_loss.options.kl_cov_ratio=0.1",
    "actor.policy_loss.ppo_kl_coef=0.2": "actor.policy_loss.options.ppo_kl_coef=0.2",
    "actor.policy_loss.tau_neg=2.0": "actor.policy_loss.options.tau_neg=2.0",
    "actor.policy_loss.tau_pos=2.0": "actor.policy_loss.options.tau_pos=2.0",
    "actor_rollout_ref.actor.tau_pos=2.0": "actor.policy_loss.options.tau_pos=2.0",
    "critic.model.external_lib=mine": "model.external_lib=mine",
    "critic.model.trust_remote_code=true": "model.trust_remote_code=true",
    "critic.model.use_shm=true": "model.use_shm=true",
    "ref.fsdp_config.offload_policy=true": "ref.fsdp_config.param_offload=true",
    "reward.reward_model.model.external_lib=mine": "model.external_lib=mine",
    "reward_model.model.use_shm=true": "model.use_shm=true",
    "rollout.seed=5": "trainer.seed=5",
}
DROPPED = (
    *("actor.data_loader_seed=1", "actor.fsdp_config.forward_prefetch=true", "trainer.del_local_ckpt_after_load=true"),
    *(
        "actor.fsdp_config.wrap_policy.min_num_params=9",
        "critic.checkpoint.save_contents=[model]",
        "critic.shuffle=true",
    ),
    *(
        "critic.fsdp_config.mixed_precision.param_dtype=bfloat16",
        "critic.model.lora_alpha=8",
        "critic.optim.betas=[0,0]",
    ),
    *("data.filter_overlong_prompts_workers=4", "model.fused_kernel_options.impl_backend=torch"),
    *(
        "ref.fsdp_config.reshard_after_forward=false",
        "ref.log_prob_use_dynamic_bsz=false",
        "ref.use_torch_compile=true",
    ),
    *("reward.reward_model.micro_batch_size_per_gpu=2", "rollout.log_prob_micro_batch_size_per_gpu=2"),
    *("trainer.balance_batch=false", "critic.model.enable_gradient_checkpointing=true", "critic.use_dynamic_bsz=false"),
)


def yaml_of(*overrides: str) -> str:
    return to_yaml(compose(overrides, checks=()))


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_todays(old: str) -> None:
    found = resolve([old], checks=())
    assert to_yaml(found.config) == yaml_of(MOVED[old])
    assert MOVED[old].partition("=")[0] in found.notes[-1]


@pytest.mark.parametrize("old", DROPPED)
def test_what_follows_another_key_now_is_accepted_with_a_reason(old: str) -> None:
    found = resolve([old], checks=())
    assert to_yaml(found.config) == yaml_of()
    assert len(found.notes) == 1
    assert " has no effect: " in found.notes[0]


@pytest.mark.parametrize(("names", "command"), [(TRAIN, "train"), (TRAIN, "eval"), (SFT, "sft")])
def test_the_settings_of_an_old_run_compose(names: list[str], command: str, tmp_path: Path) -> None:
    """Its config.yaml has all keys, with old and new names side by side. Defaults mean the same, with few notes."""
    names = [name for name in names if command == "eval" or not name.startswith("evaluation")]
    schema = SCHEMAS[command]
    found = resolve(names, config_name=command, schema=schema, checks=())
    if command != "sft":
        assert found.config.actor.optim.lr_warmup_steps == found.config.critic.optim.lr_warmup_steps == 0
        found.config.actor.optim.lr_warmup_steps, found.config.critic.optim.lr_warmup_steps = 0, None
        found.config.actor.policy_loss.options = {}
    assert to_yaml(found.config) == to_yaml(compose([], config_name=command, schema=schema, checks=()))
    assert not [note for note in found.notes if "no effect" in note]


def test_each_old_name_is_known() -> None:
    """No name of the list has been forgotten, and none that is not on it needs an entry."""
    for name in (*TRAIN, *SFT):
        path = name.partition("=")[0]
        assert {path, name} & table().keys() or any(path.startswith(f"{entry}.") for entry in table()), name


def test_todays_name_wins_over_one_that_was_merged_into_it(tmp_path: Path) -> None:
    both = [
        "trainer.seed=3",
        "rollout.seed=5",
        "actor.optim.lr_warmup_steps=7",
        "actor.optim.lr_warmup_steps_ratio=0.5",
    ]
    (tmp_path / "exp.yaml").write_text(
        "defaults: [train, _self_]\ntrainer: {seed: 3}\nrollout: {seed: 5}\n"
        "actor: {optim: {lr_warmup_steps: -1, lr_warmup_steps_ratio: 0.5}}\n"
    )
    config = compose(both, checks=())
    assert (config.trainer.seed, config.actor.optim.lr_warmup_steps) == (3, 7)
    config = compose(config_dir=str(tmp_path), config_name="exp", checks=())
    assert (config.trainer.seed, config.actor.optim.lr_warmup_steps) == (3, 0.5)
    assert compose(["rollout.seed=6"], config_dir=str(tmp_path), config_name="exp", checks=()).trainer.seed == 6


def test_supervised_training_has_old_names_too() -> None:
    config = compose(
        ["optim.lr_warmup_steps_ratio=0.3", "optim.min_lr=1e-6"], schema=SftConfig, config_name="sft", checks=()
    )
    assert (config.optim.lr_warmup_steps, config.optim.min_lr_ratio) == (0.3, pytest.approx(0.1))


def test_an_option_of_another_loss_is_no_mistake(ready: list[str]) -> None:
    """It had no effect as a key of its own, either."""
    resolve([*ready, "rollout.n=2", "actor.policy_loss.clip_cov_ratio=0.3"])
    with pytest.raises(UserError, match="options.clip_cov: vanilla has no such option"):
        resolve([*ready, "rollout.n=2", "actor.policy_loss.options.clip_cov=0.3"])


def test_the_command_line_says_todays_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--cfg", "job", "rollout.seed=5"])
    shown = capsys.readouterr()
    assert shown.err.count("rollout.seed is trainer.seed here") == 1
    assert "seed: 5" in shown.out
    assert main(["config", "explain", "rollout.seed", "critic.shuffle"]) == 0
    shown = capsys.readouterr()
    assert "trainer.seed" in shown.out
    assert "actor.shuffle" in shown.out


def test_a_key_under_two_names_is_said(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("defaults: [train, _self_]\nrollout: {seed: 5}\ntrainer: {seed: 7}\n")
    found = resolve([], config_dir=str(tmp_path), config_name="twice", checks=())
    assert found.config.trainer.seed == 7
    assert "trainer.seed is set under two names: 7 counts, not 5" in found.notes


def test_a_converted_value_is_said() -> None:
    (note,) = resolve(["actor.optim.min_lr=1e-7"], checks=()).notes
    assert note == "actor.optim.min_lr is actor.optim.min_lr_ratio here, divided by actor.optim.lr"


@pytest.mark.parametrize(("name", "commands"), [("rollout.seed", ["train", "eval"]), ("optim.min_lr", ["sft"])])
def test_an_old_name_belongs_to_commands_with_its_section(name: str, commands: list[str]) -> None:
    (found,) = explain(name, SCHEMAS)
    assert found.commands == commands
