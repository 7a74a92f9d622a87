"""What was written for verl has verl's defaults of its version, below what it sets itself."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from agentrl.cli.main import main
from agentrl.config import compose, resolve
from agentrl.config.explain import explain
from agentrl.config.keys import schema_keys
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.config.tree import Reader
from agentrl.config.validate import SETTINGS
from agentrl.core.errors import UserError
from agentrl.core.resources import share
from agentrl.rewards.checks import RUN
from agentrl.training.update.schedules import warmup_steps
from agentrl_verl.reading.defaults import table, values
from agentrl_verl.reading.file_check import guess_command
from agentrl_verl.reading.scripts import read_source
from agentrl_verl.reading.versions import VARIABLE, VERSIONS, find_version, read_version, spans

pytestmark = pytest.mark.integration

REFERENCE = Path(sys.prefix) / "reference/verl/trainer/config"
needs_verl = pytest.mark.skipif(not REFERENCE.is_dir(), reason="make setup installs verl's package for reference")

YAML = """
defaults:
  - ppo_trainer
  - _self_
trainer: {total_epochs: 3}
"""

OURS: Mapping[str, str] = {
    "distillation.": "verl's hold where it is enabled, and follow from several settings: see distilling.py",
    "checkpoint.load_contents": "null follows save_contents, as in verl",
    "checkpoint.save_contents": "null follows the actor's, which is the same",
    "data.train_files": "where files lie",
    "data.val_files": "where files lie",
    "val_kwargs.do_sample": "verl's servers read the temperature alone",
    "device": "the machine says it",
    "dtype": "auto is bfloat16 on a GPU",
    "enable_rollout_routing_replay": "null is true with actor.router_replay.mode=R3",
    "engine_kwargs": "the engine's own",
    "experiment_name": "names",
    "filter_groups.metric": "score is verl's reward",
    "free_cache_engine": "null is true where not both fit on the GPU",
    "fused_kernel_options": "speed",
    "gpu_memory_utilization": "null is what a step needs and the trainer leaves",
    "logger": "wandb needs an account",
    "max_num_batched_tokens": "speed",
    "max_num_seqs": "speed",
    "agent.num_workers": "placement",
    "max_token_len_per_gpu": "memory",
    "model.path": "where models lie; the critic's is the policy's own",
    "multi_turn.format": "found out from the template",
    "n_gpus_per_node": "placement",
    "nccl_timeout": "patience",
    "param_dtype": "auto is bfloat16 on a GPU",
    "profiler": "profiles",
    "project_name": "names",
    "default_agent_loop": "rows without agent_name meet the tools",
    "default_local_dir": "where files lie",
    "output_dir": "where files lie",
    "lora_merge": "speed",
    "reshard_after_forward": "memory",
    "rollout.name": "placement",
    "save_freq": "minutes are lost, not hours",
    "rollout_data_dir": "what `agentrl view` shows",
    "trainer.seed": "draws are not verl's in any case",
    "tensor_model_parallel_size": "placement",
    "update_weights_bucket_megabytes": "speed",
    "use_dynamic_bsz": "speed",
    "use_fused_kernels": "memory",
    "use_torch_compile": "speed",
    "validation_data_dir": "what `agentrl view` shows",
}
"""Ends, or parts, of keys whose value stays agentrl's, and why."""


def unchecked(*overrides: str, name: str = "ppo_trainer", **where: Any) -> Config:
    return compose(overrides, config_name=name, checks=(), **where)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkout around, and nothing said."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def _leaves(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _verls(name: str, schema: type) -> dict[str, Any]:
    """verl's own file, composed by Hydra, under today's keys; references of verl's between keys left out."""
    with initialize_config_dir(str(REFERENCE), version_base=None):
        config: DictConfig = hydra_compose(name)
    reader = Reader(schema)
    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    found: dict[str, Any] = {}
    for path, value in _leaves({str(key): below for key, below in raw.items()}):
        if path.startswith(
            ("data.continuous_token", "critic.model.lora.", "actor_rollout_ref.model.lora.", "model.lora.")
        ):
            continue  # newer than the names that are known, or Megatron's
        if not (isinstance(value, str) and "${" in value):
            found |= {setting.path: setting.value for setting in reader.read(path, value, config)}
    return found


@needs_verl
def test_verls_whole_file_composes() -> None:
    """As it does for one who stands in a checkout and names it; what is null there is not set."""
    overrides = ["actor_rollout_ref.rollout.name=vllm", "trainer.logger=console", "algorithm.filter_groups.metric=null"]
    where = {"config_dir": str(REFERENCE), "program": "verl.trainer.main_ppo"}
    config = resolve(overrides, config_name="ppo_trainer", checks=(), **where).config
    assert (config.trainer.total_epochs, config.algorithm.filter_groups.metric) == (30, "score")
    assert config.actor.profiler.tool == "torch"
    with pytest.raises(UserError, match=r"algorithm.filter_groups.metric=null: must be str"):
        compose(["algorithm.filter_groups.metric=null"], checks=())


@pytest.mark.prevents("a script written for another framework trains with other defaults")
@needs_verl
@pytest.mark.parametrize(
    ("name", "schema"), [("ppo_trainer", Config), ("sft_trainer_engine", SftConfig), ("evaluation", EvalConfig)]
)
def test_the_table_is_verls_own_file(name: str, schema: type) -> None:
    """Key by key: verl 0.9's value, or one that stays agentrl's for a reason that is written down."""
    here = {path: key.default for path, key in schema_keys(schema).items()} | values(name, "0.9")
    theirs = {path: value for path, value in _verls(name, schema).items() if path in here}
    differing = {path: value for path, value in theirs.items() if here[path] != value}
    strange = {path: (here[path], value) for path, value in differing.items() if not any(part in path for part in OURS)}
    if name == "evaluation":
        strange.pop("data.path")
    assert not strange
    assert len(theirs) > (3 if name == "evaluation" else 40)


def test_the_table_is_of_real_keys() -> None:
    schemas = {"ppo_trainer": Config, "dapo_trainer": Config, "one_step_off_ppo_trainer": Config}
    schemas |= {f"ppo_{engine}_trainer": Config for engine in table()["engines"]}
    schemas |= {"generation": EvalConfig, "evaluation": EvalConfig}
    for file in table()["files"]:
        schema = schemas.get(file, SftConfig)
        for version in VERSIONS:
            assert values(file, version).keys() <= schema_keys(schema).keys()
    for text in table()["advice"]:
        assert text.partition("=")[0] in table()["files"]["ppo_trainer"]
    assert {share() / f"configs/{file}.yaml" for file in table()["files"]} <= {*(share() / "configs").glob("*.yaml")}


def test_every_program_that_is_served_has_a_file() -> None:
    from agentrl_verl import programs

    served = programs.table()["served"]
    assert {name for name in served if "model_merger" not in name} <= table()["programs"].keys()
    assert set(table()["programs"].values()) <= table()["files"].keys()


def test_what_is_left_out_is_verls() -> None:
    config = unchecked()
    assert config.algorithm.adv_estimator == "gae"
    assert (config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.rollout.n) == (1024, 256, 1)
    assert (config.trainer.total_epochs, config.data.filter_overlong_prompts) == (30, False)
    assert config.algorithm.rollout_correction.rollout_is is None
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high) == (0.2, 0.2)
    assert (config.reward.tool_weight, config.reward.interaction_weight) == (0.0, 0.0)
    multi_turn = config.rollout.multi_turn
    assert (multi_turn.max_parallel_calls, multi_turn.max_tool_response_length) == (1, 256)
    assert config.model.lora_alpha == 16
    assert (config.data.max_prompt_length, config.data.max_response_length) == (512, 512)


def test_supervised_training_and_generation() -> None:
    old = compose([], config_name="sft_trainer", schema=SftConfig, checks=())
    assert (old.data.train_batch_size, old.data.max_length, old.optim.lr) == (256, 1024, 1e-5)
    assert (old.optim.betas, old.trainer.total_epochs) == ([0.9, 0.95], 4)
    new = compose([], config_name="sft_trainer_engine", schema=SftConfig, checks=())
    assert (new.optim.lr, new.optim.lr_scheduler_type, new.optim.lr_warmup_steps) == (1e-3, "constant", 0)
    answers = compose([], config_name="generation", schema=EvalConfig, checks=())
    assert (answers.rollout.n, answers.rollout.top_k, answers.rollout.top_p) == (5, 50, 0.7)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version(version: str, monkeypatch: pytest.MonkeyPatch, ready: list[str]) -> None:
    """It composes with all checks, and differs where the versions do."""
    monkeypatch.setenv(VARIABLE, version)
    overrides = [*ready, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]
    resolved = resolve(overrides, config_name="ppo_trainer")
    multi_turn, old = resolved.config.rollout.multi_turn, version == "0.4"
    assert (multi_turn.max_tool_response_length == 256, multi_turn.max_parallel_calls == 1) == (not old, not old)
    assert resolved.config.rollout.val_kwargs.do_sample is (False if version < "0.7" else None)
    assert resolved.notes[0].startswith(f"verl {version}'s defaults ({VARIABLE}) for what is not set: data.train_batch")


@pytest.mark.parametrize(
    ("version", "unset", "given"), [("0.6", None, None), ("0.8", None, None), ("0.9", "token-mean", "token-sum")]
)
def test_gspo_has_the_mean_that_its_version_of_verl_gives_it(
    version: str, unset: str | None, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, version)
    gspo = ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"]
    assert resolve(gspo, config_name="ppo_trainer", checks=()).config.actor.loss_agg_mode == unset
    resolved = resolve([*gspo, "actor_rollout_ref.actor.loss_agg_mode=token-sum"], config_name="ppo_trainer", checks=())
    assert resolved.config.actor.loss_agg_mode == given
    ignored = [note for note in resolved.notes if "does nothing in verl" in note]
    assert len(ignored) == (given is None)


def test_no_warm_up_steps_leave_it_to_the_ratio() -> None:
    warm = ["actor.optim.lr_warmup_steps=0", "actor.optim.lr_warmup_steps_ratio=0.1"]
    found = [warmup_steps(unchecked(*warm, name=name).actor.optim, 100) for name in ("ppo_trainer", "train")]
    assert found == [10, 0]  # verl reads 0 as not set; here it is a number of steps


def test_agentrls_own_files_are_as_they_were() -> None:
    config = unchecked(name="train")
    assert (config.algorithm.adv_estimator, config.data.train_batch_size, config.rollout.n) == ("grpo", 16, 8)


def test_files_win_over_defaults_and_overrides_over_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(YAML)
    config = unchecked("actor_rollout_ref.actor.clip_ratio_high=0.28", name="mine", config_dir=str(tmp_path))
    assert (config.trainer.total_epochs, config.actor.clip_ratio_high, config.actor.clip_ratio_low) == (3, 0.28, 0.2)
    assert config.algorithm.adv_estimator == "gae"
    assert unchecked("trainer.total_epochs=2", name="mine", config_dir=str(tmp_path)).trainer.total_epochs == 2
    assert (
        unchecked("algorithm=dr_grpo", "rollout.n=4", name="mine", config_dir=str(tmp_path)).algorithm.adv_estimator
        == "grpo"
    )


def test_a_file_that_lists_a_file_that_lists_verls(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(YAML)
    (tmp_path / "yours.yaml").write_text("defaults: [mine, _self_]\nrollout: {n: 2}\n")
    config = unchecked(name="yours", config_dir=str(tmp_path))
    assert (config.algorithm.adv_estimator, config.trainer.total_epochs, config.rollout.n) == ("gae", 3, 2)


@pytest.mark.parametrize(("batch", "mini"), [(512, 256), (384, 192), (7, 7)])
def test_a_mini_batch_that_is_not_set_fits_the_batch(batch: int, mini: int, ready: list[str]) -> None:
    overrides = [*ready, f"data.train_batch_size={batch}", "algorithm.adv_estimator=remax"]
    resolved = resolve(overrides, config_name="ppo_trainer")
    assert resolved.config.actor.ppo_mini_batch_size == mini
    assert ("(verl's 256 does not fit data.train_batch_size)" in resolved.notes[0]) == (mini != 256)


def test_a_mini_batch_that_is_set_is_checked_as_ever(ready: list[str]) -> None:
    with pytest.raises(UserError, match="is over data.train_batch_size=128"):
        resolve([*ready, "data.train_batch_size=128", "actor.ppo_mini_batch_size=256"], config_name="ppo_trainer")


@pytest.mark.parametrize("estimator", ["grpo", "opo"])
def test_groups_of_one_are_verls(estimator: str, ready: list[str]) -> None:
    """Alone in its group an answer has its score for its advantage there; agentrl's estimators refuse such groups."""
    overrides = [*ready, f"algorithm.adv_estimator={estimator}"]
    resolved = resolve(overrides, config_name="ppo_trainer")
    assert resolved.config.algorithm.adv_estimator == "reward"
    assert any(note.startswith(f"algorithm.adv_estimator={estimator} with rollout.n=1 is") for note in resolved.notes)
    with pytest.raises(UserError, match="in a group of one"):
        resolve([*overrides, "rollout.n=1"], config_name="train")


def test_servers_of_old_versions_read_the_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.6")
    assert unchecked().rollout.val_kwargs.do_sample is False
    assert unchecked("actor_rollout_ref.rollout.mode=async").rollout.val_kwargs.do_sample is None


def test_nothing_scores_where_only_tools_do(ready: list[str], tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("tools: []\n")
    tools = ["rollout.multi_turn.enable=true", f"rollout.multi_turn.tool_config_path={tmp_path / 'tools.yaml'}"]
    resolve([*ready[:2], *tools], config_name="train", checks=RUN)
    with pytest.raises(UserError, match=r"nothing scores the answers.*reward.tool_weight"):
        resolve([*ready[:2], *tools], config_name="ppo_trainer", checks=RUN)


@pytest.mark.parametrize(
    ("overrides", "level", "cap"),
    [
        (["algorithm.rollout_is=true", "algorithm.rollout_is_threshold=3.0"], "token", 3.0),
        (["algorithm.rollout_is=true", "algorithm.rollout_is_level=sequence"], "sequence", 2.0),
        (["algorithm.rollout_is=false", "algorithm.rollout_is_level=token"], None, 2.0),
        (["+actor_rollout_ref.actor.tis_imp_ratio_cap=4"], "token", 4),
        (["+actor_rollout_ref.actor.tis_imp_ratio_cap=-1"], None, 2.0),
        (["algorithm.rollout_correction.rollout_is_threshold=5"], None, 5),
    ],
)
def test_the_correction_is_on_where_verl_has_it_on(overrides: list[str], level: str | None, cap: float) -> None:
    correction = unchecked(*overrides).algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == (level, cap)


# What the person reads


def test_the_lines_name_what_counts() -> None:
    first, second = resolve([], config_name="ppo_trainer", checks=SETTINGS).notes[:2]
    assert "algorithm.adv_estimator=gae, data.train_batch_size=1024, actor.ppo_mini_batch_size=256" in first
    assert "multi_turn" not in first
    assert "lora" not in first
    assert second.startswith("agentrl would take algorithm.adv_estimator=grpo")
    assert "rollout_correction.rollout_is=token" in second
    overrides = [
        "algorithm.adv_estimator=grpo",
        "rollout.n=8",
        "rollout.multi_turn.enable=true",
        "actor.clip_ratio=0.3",
    ]
    first, second = resolve(overrides, config_name="ppo_trainer", checks=SETTINGS).notes[:2]
    assert "adv_estimator" not in first
    assert "critic" not in first
    assert "rollout.multi_turn.max_tool_response_length=256" in first
    assert "max_consecutive_errors=1000000 (no limit)" in first
    assert "actor.clip_ratio_low=0.2" in first
    assert "max_tool_response_length=1024" in second
    assert "without which actor.clip_ratio does nothing" in second


def test_answering_alone_reads_no_training_defaults() -> None:
    notes = resolve([], config_name="ppo_trainer", schema=EvalConfig, checks=()).notes
    assert not {"adv_estimator", "train_batch_size", "total_epochs"} & set(notes[0].replace("=", ".").split("."))


def test_what_is_not_verls_prints_nothing(ready: list[str]) -> None:
    assert not [note for note in resolve(ready).notes if "verl" in note]


def test_check_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo \\\n  actor_rollout_ref.rollout.n=4 trainer.total_epochs=2\n")
    assert main(["config", "check", str(script)]) == 0
    out = capsys.readouterr().out
    assert "unset  verl 0.9's defaults (the newest, for nothing tells which) for what is not set: " in out
    assert "algorithm.adv_estimator=gae" in out
    assert "total_epochs=30" not in out
    (tmp_path / "mine.yaml").write_text(YAML)
    assert main(["config", "check", str(tmp_path / "mine.yaml")]) == 0
    out = capsys.readouterr().out
    assert "lists ppo_trainer  the file is missing; verl's defaults are used instead" in out
    assert "algorithm.adv_estimator=gae" in out


def test_check_of_a_script_of_ours_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("agentrl train rollout.n=4 actor.ppo_mini_batch_size=8\n")
    main(["config", "check", str(script)])
    assert "unset" not in capsys.readouterr().out
    assert guess_command(read_source(script)) == "train"


def test_check_does_not_refuse_a_batch_that_verls_mini_batch_does_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=96 actor_rollout_ref.rollout.n=4\n")
    assert main(["config", "check", str(script)]) == 0


def test_explain_says_verls(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = explain("rollout.val_kwargs.do_sample", {"train": Config})
    assert [fact for fact in found.facts if fact[0] == "in verl"][:2] == [
        ("in verl", "false (ppo_trainer, 0.4 to 0.6)"),
        ("in verl", "null (ppo_trainer, 0.7 to 0.9)"),
    ]
    each = explain("data.train_batch_size", SCHEMAS)
    assert [[fact for fact in one.facts if fact[0] == "in verl"] for one in each] == [
        [("in verl", "1024 (ppo_trainer)")],
        [("in verl", "256 (sft_trainer)"), ("in verl", "256 (sft_trainer_engine)")],
    ]
    assert main(["config", "explain", "algorithm.adv_estimator"]) == 0
    assert "in verl     gae (ppo_trainer)" in capsys.readouterr().out


def test_the_printed_configuration_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--cfg job` has verl's values, and composes to the same again without verl's file."""
    with pytest.raises(SystemExit):
        main(["train", "--config-name", "ppo_trainer", "--cfg", "job"])
    (tmp_path / "dumped.yaml").write_text(capsys.readouterr().out)
    assert unchecked(name="dumped", config_dir=str(tmp_path)) == unchecked()


# Which version


def checkout(folder: Path, version: str) -> Path:
    file = folder / "verl/version/version"
    file.parent.mkdir(parents=True)
    file.write_text(f"{version}\n")
    return folder


@pytest.mark.parametrize(
    ("text", "number"),
    [("0.7", "0.7"), ("v0.7.1", "0.7"), ("0.8.0.dev", "0.8"), ("0.3.0", "0.4"), ("0.12.0.dev0", "0.9"), ("1.0", "0.9")],
)
def test_versions_as_they_are_written(text: str, number: str) -> None:
    assert read_version(text, "said").number == number
    assert ("the nearest to" in read_version(text, "said").reason) == (text in ("0.3.0", "0.12.0.dev0", "1.0"))


@pytest.mark.parametrize("text", ["", "7", "latest", "0.x"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(UserError, match=r"is no version of verl \(said\): choose 0.4, 0.5"):
        read_version(text, "said")


def test_the_environment_wins_then_the_scripts_checkout_then_the_one_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = checkout(tmp_path / "here", "0.8.0.dev"), checkout(tmp_path / "there", "0.5.0")
    script = there / "examples/grpo/run.sh"
    script.parent.mkdir(parents=True)
    script.write_text("\n")
    (here / "deep").mkdir()
    monkeypatch.chdir(here / "deep")
    assert find_version([], []).number == "0.8"
    found = find_version([script], ["trainer.use_v1"])
    assert (found.number, found.reason) == ("0.5", str(there / "verl/version/version"))
    monkeypatch.setenv(VARIABLE, "0.7 --as")
    assert find_version([script], []) == read_version("0.7", "--as")


def test_keys_and_programs_tell() -> None:
    def told(*names: str, file: str = "ppo_trainer") -> tuple[str, str]:
        found = find_version([], names, file)
        return found.number, found.reason

    assert told("data.train_batch_size") == ("0.9", "the newest, for nothing tells which")
    turns = "actor_rollout_ref.rollout.multi_turn.max_turns"
    assert told("data.train_batch_size", turns) == ("0.4", f"the last that has {turns}")
    assert told("reward_model.sandbox_fusion.url")[0] == "0.7"
    assert told("reward_model.sandbox_fusion.url", "ray_init.num_cpus")[0] == "0.5"
    assert told("algorithm.rollout_is_level")[0] == "0.6"
    assert told("reward.reward_manager.name", "trainer.use_v1")[0] == "0.9"
    assert told("verl.trainer.fsdp_sft_trainer", "model.path", file="sft_trainer")[0] == "0.7"
    assert told("optim.warmup_steps_ratio", file="sft_trainer")[0] == "0.6"


def test_spans_are_of_known_versions() -> None:
    for section in ("ppo_trainer", "sft_trainer"):
        assert all(span and set(span) < set(VERSIONS) for span in spans(section).values())


MEGATRON = {"config_name": "ppo_megatron_trainer", "program": "verl.trainer.main_ppo", "checks": ()}


def test_another_engines_schedule_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_VERL_VERSION", "0.9")
    schedules = {
        engine: resolve(
            [f"model_engine={engine}"], program="verl.trainer.main_ppo", checks=()
        ).config.actor.optim.lr_scheduler_type
        for engine in ("dp", "megatron", "torchtitan", "veomni")
    }
    assert schedules == {"dp": "constant", "megatron": "constant", "torchtitan": "linear", "veomni": "cosine"}


def test_megatrons_schedule_fell_in_0_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_VERL_VERSION", "0.4")
    assert resolve([], **MEGATRON).config.actor.optim.lr_scheduler_type == "linear"
    assert (
        resolve(["actor.optim.lr_decay_style=constant"], **MEGATRON).config.actor.optim.lr_scheduler_type == "constant"
    )


def test_megatron_reads_an_alpha_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_VERL_VERSION", "0.9")
    assert resolve(["model.lora.rank=8", "model.lora.alpha=null"], **MEGATRON).config.model.lora_alpha == 32
    assert resolve(["model.lora.rank=8"], **MEGATRON).config.model.lora_alpha == 32
    assert (
        resolve(["model.lora.rank=8", "model.lora.alpha=64", "model.lora_alpha=16"], **MEGATRON).config.model.lora_alpha
        == 64
    )


@pytest.mark.parametrize("detached", [True, False])
def test_heads_for_several_tokens_change_nothing_if_detached(detached: bool) -> None:
    settings = ["model.mtp.enable=true", "model.mtp.enable_train=true", f"model.mtp.detach_encoder={detached}"]
    if detached:
        assert any("learn the same" in note for note in resolve(settings, **MEGATRON).notes)
        return
    with pytest.raises(UserError, match="its loss also trains the layers below"):
        resolve(settings, **MEGATRON)
