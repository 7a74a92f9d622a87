"""Each mistake is one line: the culprit first, then the fix."""

from pathlib import Path

import pytest

from agentrl.config import compose, resolve
from agentrl.core.errors import UserError


def complaint(*overrides: str, **where: str) -> str:
    with pytest.raises(UserError) as caught:
        compose(overrides, **where)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("override", "guess"),
    [
        ("rollout.temprature=1", "rollout.temperature"),
        ("actor_rollout_ref.rollout.temprature=1", "rollout.temperature"),
        ("train_batch_size=4", "data.train_batch_size"),
        ("actor.lr=1", "actor.optim.lr"),
        ("rollout.multiturn.enable=true", "rollout.multi_turn.enable"),
        ("trainer.total_steps=4", "trainer.total_training_steps"),
        ("multi_turn.enabled=true", "rollout.multi_turn.enable"),
        ("+rollout.val_kwargs={tempeature: 1}", "rollout.val_kwargs.temperature"),
        ("~trainer.seeed", "trainer.seed"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(override: str, guess: str) -> None:
    message = complaint(override)
    assert message.startswith("unknown key ")
    assert message.endswith(f"did you mean {guess}?")


def test_a_key_like_no_other_names_the_list() -> None:
    assert "--help-keys" in complaint("zzz.qqq=1")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.n=abc", "rollout.n=abc: must be int"),
        ("rollout.n=null", "rollout.n=null: must be int"),
        ("rollout.n=1.5", "rollout.n=1.5: must be int"),
        ("trainer.total_training_steps=many", "trainer.total_training_steps=many: must be int or null"),
        ("trainer.live=maybe", "trainer.live=maybe: must be bool"),
        ("actor.optim.betas=[0.9,x]", "actor.optim.betas=[0.9, 'x']: must be list of float"),
        ("reward.custom_reward_function.reward_kwargs=3", "must be mapping"),
        ("rollout.n=[1,2]", "rollout.n=[1, 2]: must be int"),
        ("rollout.n={a: 1}", "rollout.n={'a': 1}: must be int"),
    ],
)
def test_a_wrong_type_names_key_value_and_type(override: str, expected: str) -> None:
    assert expected in complaint(override)


@pytest.mark.parametrize(
    ("override", "choices"),
    [
        ("data.truncation=top", "error, left, right or middle"),
        ("actor.loss_agg_mode=mean", "token-mean"),
        ("algorithm.adv_estimator=grop", "gae, gae_turn, grpo, "),
        ("algorithm.kl_penalty=k4", "low_var_kl"),
        ("actor.kl_loss_type=k4", "low_var_kl+"),
        ("algorithm.kl_ctrl.type=free", "fixed or adaptive"),
        ("rollout.multi_turn.format=xml", "hermes"),
        ("rollout.multi_turn.tokenization_sanity_check_mode=on", "strict"),
        ("rollout.multi_turn.tool_response_truncate_side=both", "left, right or middle"),
        ("rollout.multi_turn.tool_response_unit=words", "characters or tokens"),
        ("trainer.device=tpu", "auto, cpu or cuda"),
        ("trainer.resume_mode=yes", "auto, disable or resume_path"),
        ("trainer.logger=[console,comet]", "console, file, tensorboard, mlflow, otel, swanlab, trackio, wandb"),
        ("actor.optim.lr_scheduler_type=step", "constant, linear, cosine, wsd"),
        ("model.dtype=float16", "float32 or bfloat16"),
        ("rollout.name=tgi", "choose auto, openai, hf"),
    ],
)
def test_a_wrong_word_lists_the_right_ones(override: str, choices: str) -> None:
    message = complaint(override)
    assert message.startswith(override.partition("=")[0])
    assert choices in message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["rollout.n=1"], ["rollout.n=1", "grpo", "rollout.n=8"]),
        (["rollout.n=1", "algorithm=rloo"], ["rloo"]),
        (["data.train_batch_size=8"], ["actor.ppo_mini_batch_size=16", "data.train_batch_size=8"]),
        (["data.train_batch_size=20"], ["data.train_batch_size=20", "actor.ppo_mini_batch_size=16", "to 20"]),
        (["actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"], ["actor.use_kl_loss", "set one to false"]),
        (["rollout.temperature=0"], ["rollout.temperature=0", "rollout.do_sample=false"]),
        (["rollout.top_p=1.5"], ["rollout.top_p=1.5"]),
        (["algorithm.min_group_size=9", "rollout.n=8"], ["algorithm.min_group_size=9", "rollout.n=8"]),
        (["ref.update_freq=0", "actor.use_kl_loss=true"], ["ref.update_freq=0"]),
        (["rollout.min_p=-0.1"], ["rollout.min_p=-0.1"]),
        (["rollout.val_kwargs.repetition_penalty=0"], ["rollout.val_kwargs.repetition_penalty=0"]),
        (["rollout.val_kwargs.top_p=0"], ["rollout.val_kwargs.top_p=0"]),
        (["data.max_response_length=0"], ["data.max_response_length=0", "at least 1"]),
        (["actor.ppo_micro_batch_size_per_gpu=0"], ["actor.ppo_micro_batch_size_per_gpu=0"]),
        (["rollout.multi_turn.max_parallel_calls=0"], ["rollout.multi_turn.max_parallel_calls=0"]),
        (["rollout.multi_turn.tool_config_path=nope.yaml"], ["rollout.multi_turn.tool_config_path", "nope.yaml"]),
        (["rollout.multi_turn.interaction_config_path=nope.yaml"], ["rollout.multi_turn.interaction_config_path"]),
        (["rollout.multi_turn.function_tool_path=nope.py"], ["rollout.multi_turn.function_tool_path", "nope.py"]),
        (["rollout.agent.agent_loop_config_path=nope.yaml"], ["rollout.agent.agent_loop_config_path"]),
        (["data.val_files=[nope.parquet]"], ["data.val_files", "nope.parquet", "agentrl data"]),
        (["data.val_files=far://far/a.parquet"], ["data.val_files", "fsspec knows no far://"]),
        (["data.val_files={a: 1}"], ["data.val_files", "give a file or a list"]),
        (["data.custom_cls.path=nope.py", "data.custom_cls.name=Rows"], ["data.custom_cls.path", "nope.py"]),
        (["data.custom_cls.name=Rows"], ["data.custom_cls.name", "data.custom_cls.path"]),
        (["model.path=./nope"], ["model.path", "agentrl model"]),
        (["model.path=far://far/model"], ["model.path", "fsspec knows no far://"]),
        (["model.chat_template=nope.jinja"], ["model.chat_template", "nope.jinja"]),
        (["reward.custom_reward_function.path=nope.py"], ["reward.custom_reward_function.path", "nope.py"]),
        (["trainer.resume_mode=resume_path"], ["trainer.resume_mode=resume_path", "trainer.resume_from_path"]),
        (["trainer.resume_from_path=/"], ["trainer.resume_from_path", "trainer.resume_mode=resume_path"]),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=nope"],
            ["trainer.resume_from_path", "nope", "does not exist"],
        ),
        (["critic.enable=true"], ["critic.enable=true", "uses no critic", "gae"]),
        (["critic.enable=false", "algorithm.adv_estimator=gae"], ["critic.enable=false", "remove critic.enable"]),
        (["critic.ppo_epochs=0"], ["critic.ppo_epochs=0"]),
    ],
)
def test_what_does_not_fit_says_how_to_mend_it(ready: list[str], overrides: list[str], parts: list[str]) -> None:
    message = complaint(*ready, *overrides)
    for part in parts:
        assert part in message


def test_nothing_prepared_says_what_is_missing_and_who_makes_it() -> None:
    message = complaint("rollout.multi_turn.enable=true")
    for part in ("model.path", "agentrl model", "data.train_files", "agentrl data"):
        assert part in message


def test_what_is_fine_passes(ready: list[str]) -> None:
    fine = (
        ["rollout.n=1", "algorithm=reinforce_plus_plus"],
        ["rollout.n=1", "trainer.val_only=true", f"data.val_files={ready[1].partition('=')[2]}"],
        ["data.train_batch_size=48"],
        ["model.path=org/name"],
        ["rollout.do_sample=false"],
        ["reward.custom_reward_function.path=my.rewards"],
        ["reward.custom_reward_function.path=null", "reward.custom_reward_function.name=my.rewards:score"],
        ["trainer.resume_from_path=/", "trainer.resume_mode=resume_path"],
        ["rollout.agent.default_agent_loop=my.Loop", "reward.custom_reward_function.path=null"],
    )
    for overrides in fine:
        compose([*ready, *overrides])


def test_validation_only_asks_for_validation_rows(ready: list[str]) -> None:
    assert "data.val_files" in complaint(*ready, "trainer.val_only=true")


def test_tools_that_no_row_will_meet_are_pointed_out(ready: list[str], tmp_path: Path) -> None:
    tools = tmp_path / "tools.yaml"
    tools.write_text("tools: []\n")
    given = [*ready, f"rollout.multi_turn.tool_config_path={tools}"]
    assert "rollout.multi_turn.enable=true" in "".join(resolve(given).notes)
    assert resolve([*given, "rollout.multi_turn.enable=true"]).notes == []


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rollout.n=2,3", ["rollout.n=2,3", "rollout.n=[2,3]"]),
        ("rollout.n=range(1,3)", ["rollout.n=range(1,3)", "one value"]),
        ("rollout.n", ["rollout.n", "key=value"]),
        ("trainer.experiment_name=a=b", ["trainer.experiment_name=a=b", "quote"]),
        ("algorithm=grop", ["algorithm=grop", "dr_grpo, grpo"]),
        ("nogroup/x=y", ["nogroup/x=y", "no group"]),
        ("rollout.multi_turn=5", ["rollout.multi_turn=5", "section", "enable"]),
        ("rollout=fast", ["rollout=fast", "section"]),
        ("trainer.seed='${no.such}'", ["trainer.seed", "no.such"]),
    ],
)
def test_overrides_that_mean_nothing(override: str, parts: list[str]) -> None:
    message = complaint(override)
    for part in parts:
        assert part in message


def test_files_that_cannot_be_composed(tmp_path: Path) -> None:
    folder = str(tmp_path)
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "lost.yaml").write_text("defaults: [nowhere, _self_]\n")
    (tmp_path / "wrong.yaml").write_text("defaults: [train, _self_]\nrollout: {temprature: 1}\n")
    (tmp_path / "typed.yaml").write_text("defaults: [train, _self_]\nrollout: {n: lots}\n")
    assert "broken.yaml is not YAML" in complaint(config_dir=folder, config_name="broken")
    assert "list.yaml must hold keys and values" in complaint(config_dir=folder, config_name="list")
    assert "nowhere" in complaint(config_dir=folder, config_name="lost")
    assert "did you mean rollout.temperature?" in complaint(config_dir=folder, config_name="wrong")
    assert "rollout.n=lots: must be int" in complaint(config_dir=folder, config_name="typed")
    assert "did you mean typed?" in complaint(config_dir=folder, config_name="typd")
    assert "no such folder" in complaint(config_dir=f"{folder}/none")
