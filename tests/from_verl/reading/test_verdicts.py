"""`agentrl config check`: files in the shape that verl's users have them, judged line by line."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config import resolve
from agentrl.config.keys import home, schema_keys
from agentrl.config.names import lookup
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.errors import UserError
from agentrl_verl.reading.file_check import guess_command
from agentrl_verl.reading.scripts import read_source
from agentrl_verl.reading.verdicts import FATAL, Verdict, complaints, composed, judge, meanings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / ".venv" / "reference" / "verl" / "trainer" / "config"
needs_verl = pytest.mark.skipif(not REFERENCE.is_dir(), reason="make setup installs verl's package for reference")

SCRIPT = r"""#!/usr/bin/env bash
# multi-turn GRPO
set -x
MODEL=${MODEL:-Qwen/Qwen2.5-3B-Instruct}
export GPUS=8
train_files="['/data/a.parquet', '/data/b.parquet']"
ARGS=(
    actor_rollout_ref.rollout.n=4
    actor_rollout_ref.rollout.max_num_seqs=512   # a comment
)

python3 -m verl.trainer.main_ppo \
    --config-path="$HERE/config" \
    data.train_files="$train_files" \
    data.train_batch_size=512 data.return_raw_chat=True \
    actor_rollout_ref.model.path=$MODEL \
    +actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side=left \
    actor_rollout_ref.rollout.multi_turn.max_turns=2 \
    actor_rollout_ref.rollout.temprature=0.9 \
    actor_rollout_ref.rollout.name=trtllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=lots \
    'trainer.logger=["console"]' \
    trainer.experiment_name="run-$stamp" "${ARGS[@]}" $@
"""

FILE = """hydra:
  searchpath:
    - file://verl/trainer/config
defaults:
  - ppo_trainer
  - rollout@actor_rollout_ref.rollout: mine
  - _self_

data:
  max_prompt_length: 1024
  truncation: ${data.side}
actor_rollout_ref:
  hybrid_engine: True
  actor: {optim: {lr: 1e-5}, ppo_mini_batch_size: 64}
  rollout:
    response_length: ${data.max_response_length}
    multi_turn:
      tokenization_sanity_check_mode: strict
      formt: hermes
trainer:
  test_freq: -1
"""


def judged(file: Path, command: str = "train") -> dict[str, Verdict]:
    return {verdict.given.path: verdict for verdict in judge(read_source(file), SCHEMAS[command])}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    return file


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "mine.yaml").write_text("n: 16\ntensor_parallel_size: 2\n")
    file = tmp_path / "exp.yaml"
    file.write_text(FILE)
    return file


ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("path", "line", "kind", "where"),
    [
        ("data.train_files", 14, "same", "data.train_files"),
        ("data.train_batch_size", 15, "same", "data.train_batch_size"),
        ("data.return_raw_chat", 15, "ignored", None),
        ("actor_rollout_ref.model.path", 16, "moved", "model.path"),
        (f"{ROLLOUT}.n", 8, "moved", "rollout.n"),
        (f"{ROLLOUT}.max_num_seqs", 9, "moved", "rollout.max_num_seqs"),
        (f"{ROLLOUT}.multi_turn.max_turns", 18, "moved", "rollout.multi_turn.max_assistant_turns"),
        (f"{ROLLOUT}.temprature", 19, "unknown", None),
        (f"{ROLLOUT}.name", 20, "refused", None),
        (f"{ROLLOUT}.gpu_memory_utilization", 21, "wrong", "rollout.gpu_memory_utilization"),
        ("trainer.logger", 22, "same", "trainer.logger"),
        ("trainer.experiment_name", 23, "same", "trainer.experiment_name"),
    ],
)
def test_a_shell_script(script: Path, path: str, line: int, kind: str, where: str | None) -> None:
    verdict = judged(script)[path]
    assert (verdict.given.line, verdict.kind, verdict.home) == (line, kind, where)


def test_what_verl_itself_changed_is_told(script: Path) -> None:
    verdict = judged(script)[f"{ROLLOUT}.multi_turn.tool_response_truncate_side"]
    assert verdict.kind == "differs"
    assert "keeps the end, as verl does since 0.8" in verdict.text


def test_a_scripts_variables_are_filled_in(script: Path) -> None:
    found = judged(script)
    assert found["actor_rollout_ref.model.path"].given.value == "Qwen/Qwen2.5-3B-Instruct"
    assert found["data.train_files"].given.value == ["/data/a.parquet", "/data/b.parquet"]


def test_the_file_that_a_script_chooses_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "multiturn.yaml").write_text("actor_rollout_ref: {rollout: {n: 3, formt: x}}\n")
    file = tmp_path / "run.sh"
    file.write_text(
        'DIR="$(pwd)"\npython3 -m verl.trainer.main_ppo --config-path="$DIR/config" --config-name=\'multiturn\' \\\n'
        "  actor_rollout_ref.rollout.n=8\n"
    )
    monkeypatch.chdir(tmp_path)
    read = [(given.file.name, given.path.rpartition(".")[2], given.value) for given in read_source(file).settings]
    assert read == [("multiturn.yaml", "n", 3), ("multiturn.yaml", "formt", "x"), ("run.sh", "n", 8)]
    (tmp_path / "config" / "multiturn.yaml").unlink()
    ((line, text),) = read_source(file).mistakes
    assert line == 2
    assert "--config-name=multiturn: no such file" in text


def test_sums_defaults_and_commands_in_a_script(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        'name="run-$(nvidia-smi -L)"\n'
        "prompt=$((1024 * 2))\n"
        "batch=$((prompt / 4 + 1))\n"
        'HOME_DIR=${HOME_DIR:-"${SCRATCH}/verl"}\n'
        "ray job submit -- python3 -m recipe.dapo.main_dapo \\\n"
        "  +rollout@actor_rollout_ref.rollout=mine data.max_prompt_length=${prompt} data.train_batch_size=$batch \\\n"
        "  actor_rollout_ref.rollout.max_model_len=$((prompt + 1024 * 20)) \\\n"
        '  data.train_files="${HOME_DIR}/a.parquet" trainer.experiment_name="${name}" trainer.nnodes=$((4 - 2))\n'
    )
    source = read_source(file)
    assert not source.mistakes
    assert source.includes == [(6, "+rollout@actor_rollout_ref.rollout=mine")]
    assert {given.path.rpartition(".")[2]: given.value for given in source.settings} == {
        "max_prompt_length": 2048,
        "train_batch_size": 513,
        "max_model_len": 22528,
        "train_files": "${oc.env:SCRATCH}/verl/a.parquet",
        "experiment_name": "run-${oc.env:COMMAND}",
        "nnodes": 2,
    }
    assert {verdict.kind for verdict in judged(file).values()} <= {"same", "moved"}


def test_a_yaml_file_and_what_it_includes(yaml_file: Path) -> None:
    source, found = read_source(yaml_file), judged(yaml_file)
    assert source.includes == [(5, "ppo_trainer")]
    assert (found[f"{ROLLOUT}.n"].given.file.name, found[f"{ROLLOUT}.n"].given.line) == ("mine.yaml", 1)
    assert found[f"{ROLLOUT}.tensor_parallel_size"].home == "rollout.tensor_model_parallel_size"
    assert (found["actor_rollout_ref.actor.optim.lr"].given.line, found["actor_rollout_ref.actor.optim.lr"].kind) == (
        14,
        "moved",
    )
    assert found[f"{ROLLOUT}.response_length"].home == "data.max_response_length"
    assert found["data.truncation"].kind == "same", "a reference that leads nowhere yet hides the value"
    assert found[f"{ROLLOUT}.multi_turn.tokenization_sanity_check_mode"].kind == "differs"
    assert found["trainer.test_freq"].kind == "differs"
    assert found[f"{ROLLOUT}.multi_turn.formt"].text == "did you mean rollout.multi_turn.format?"


def test_a_choice_is_overridden_before_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    for name, n in (("dp", 1), ("megatron", 2)):
        (tmp_path / "actor" / f"{name}_actor.yaml").write_text(f"ppo_epochs: {n}\n")
    (tmp_path / "base.yaml").write_text(
        "defaults: [{engine: dp}, {actor@actor_rollout_ref.actor: '${engine}_actor'}, _self_]\n"
    )
    (tmp_path / "exp.yaml").write_text("defaults: [base, {override engine: megatron}, _self_]\n")
    (given,) = read_source(tmp_path / "exp.yaml").settings
    assert (given.path, given.value, given.file.name) == (
        "actor_rollout_ref.actor.ppo_epochs",
        2,
        "megatron_actor.yaml",
    )


def test_a_setting_alone_is_judged_as_a_run_would(script: Path, yaml_file: Path) -> None:
    """FATAL is what resolve() refuses, nothing else."""
    for verdict in [*judged(script).values(), *judged(yaml_file).values()]:
        if "${" in str(verdict.given.value):
            continue
        value = f"'{verdict.given.value}'" if isinstance(verdict.given.value, str) else verdict.given.value
        try:
            resolve([f"{verdict.given.path}={'null' if value is None else value}"], checks=())
            stopped = False
        except UserError:
            stopped = True
        assert stopped == (verdict.kind in FATAL), verdict


def test_settings_are_looked_at_together(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1 \\\n"
        "  algorithm.use_kl_in_reward=True actor_rollout_ref.actor.use_kl_loss=True data.train_batch_size=10 \\\n"
        "  actor_rollout_ref.actor.ppo_mini_batch_size=4\n"
    )
    config, _ = composed(judge(read_source(file), Config), Config, None)
    found = [text for text, stops in complaints(config) if stops]
    assert len(found) == 3
    assert "rollout.n=1" in found[0]
    assert "not a multiple" in found[1]
    assert "twice" in found[2]


def test_the_command_shows_lines_and_gives_its_verdict(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", str(script)]) == 1
    shown = capsys.readouterr().out
    assert "19 ? actor_rollout_ref.rollout.temprature=0.9  unknown: did you mean rollout.temperature?" in shown
    assert "run-$stamp" in shown
    assert "1 is unknown" in shown
    (tmp_path / "fine.yaml").write_text("rollout: {n: 4}\ndata: {train_batch_size: 16}\n")
    assert main(["config", "check", str(tmp_path / "fine.yaml")]) == 0
    (tmp_path / "sft.sh").write_text(
        "N=4\ntorchrun --standalone --nnodes=1 --nproc_per_node=$N -m verl.trainer.fsdp_sft_trainer \\\n"
        "  optim.lr=1e-4 model.partial_pretrain=x model.fsdp_config.cpu_offload=true\n"
    )
    assert main(["config", "check", str(tmp_path / "sft.sh")]) == 0
    shown = capsys.readouterr().out
    assert "settings of agentrl sft" in shown
    assert "trainer.n_gpus_per_node=4" in shown
    assert "fsdp_config.offload_policy" in shown


def test_what_is_no_configuration_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert main(["config", "check", str(tmp_path / "list.yaml")]) == 2
    assert main(["config", "check", str(tmp_path / "nowhere.sh")]) == 2
    (tmp_path / "bad.sh").write_text("verl x \\\n  data.train_files=[a,\n")
    assert main(["config", "check", str(tmp_path / "bad.sh")]) == 1
    assert "not in Hydra's grammar" in capsys.readouterr().out


@needs_verl
def test_verls_own_defaults_lead_somewhere() -> None:
    """Of verl 0.9.1's nine hundred defaults none is unknown: a file dumped by verl can be brought along."""
    source = read_source(REFERENCE / "ppo_trainer.yaml")
    assert len(source.settings) > 900
    assert len({given.file.name for given in source.settings}) > 15, "its defaults were followed"
    verdicts = judge(source, Config)
    assert not [v for v in verdicts if v.kind == "unknown"]
    assert {v.given.path for v in verdicts if v.kind in FATAL} <= {"trainer.logger", "algorithm.adv_estimator"}


@needs_verl
@pytest.mark.parametrize(("name", "command"), [("sft_trainer_engine", "sft"), ("evaluation", "eval")])
def test_verls_other_programs(name: str, command: str) -> None:
    source = read_source(REFERENCE / f"{name}.yaml")
    assert guess_command(source) == command
    fatal = {verdict.given.path for verdict in judge(source, SCHEMAS[command]) if verdict.kind in FATAL}
    assert fatal <= {"trainer.logger"}


def test_meanings_are_of_real_keys() -> None:
    keys = {**schema_keys(SCHEMAS["sft"]), **schema_keys(Config)}
    for name, text in meanings().items():
        assert home(name.partition("=")[0], keys), name
        assert lookup(name.partition("=")[0], "any", keys) is None
        assert len(text) < 200
