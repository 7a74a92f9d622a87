"""verl's programs: which command runs each, and the line for those that none does."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.commands import Parser
from agentrl.cli.common import add_config_arguments, chosen_file
from agentrl.cli.main import main, parse
from agentrl.config import resolve
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl_verl.programs import arguments_of, find_program, job_words, started_module, table
from agentrl_verl.reading.defaults import values
from agentrl_verl.reading.file_check import check_sources
from agentrl_verl.reading.scripts import read_sources

pytestmark = pytest.mark.integration

DAPO = r"""#!/usr/bin/env bash
set -euxo pipefail
ENGINE=${1:-vllm}
clip_ratio_low=0.2
max_prompt_length=$((1024 * 2)); max_response_length=$((1024 * 20))
RAY_ADDRESS=${RAY_ADDRESS:-"http://localhost:8265"}
WORKING_DIR=${WORKING_DIR:-"${PWD}"}
ray job submit --no-wait --runtime-env="${WORKING_DIR}/runtime.yaml" \
    --working-dir "${WORKING_DIR}" \
    -- python3 -m recipe.dapo.main_dapo \
    data.train_files=/data/dapo.parquet data.truncation='left' data.gen_batch_size=1536 data.train_batch_size=512 \
    data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \
    actor_rollout_ref.rollout.n=16 actor_rollout_ref.rollout.name=$ENGINE algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.clip_ratio_low=${clip_ratio_low} actor_rollout_ref.actor.clip_ratio_high=0.28 \
    algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.model.path=Qwen/Qwen2.5-32B \
    reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True \
    reward_model.overlong_buffer.len=4096 reward_model.overlong_buffer.penalty_factor=1.0
"""


def composed(arguments: list[str]) -> Config:
    """What a run of these arguments begins with."""
    parser = Parser(prog="agentrl")
    add_config_arguments(parser)
    args = parse(parser, arguments)
    where = {"config_name": chosen_file(args), "config_dir": args.config_dir, "program": args.program}
    config: Config = resolve(args.overrides, **where, checks=()).config
    return config


def test_a_dapo_script_composes_with_its_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "dapo.sh"
    script.write_text(DAPO)
    (checked,) = check_sources(read_sources(script))
    assert (checked.source.program, checked.source.launcher) == ("recipe.dapo.main_dapo", "ray")
    assert (checked.command, checked.troubles) == ("train", [])
    program = find_program("recipe.dapo.main_dapo")
    assert program is not None
    config = composed(arguments_of(program, checked.source.words))
    assert config.algorithm.filter_groups.enable
    assert config.algorithm.filter_groups.max_num_gen_batches == 10
    assert (config.data.gen_batch_size, config.reward.overlong_buffer.len) == (1536, 4096)
    assert (config.actor.clip_ratio_high, config.rollout.name) == (0.28, "vllm")
    assert main(["config", "check", str(script)]) == 0
    assert "recipe.dapo.main_dapo, by ray job submit as settings of agentrl train" in capsys.readouterr().out


def test_dapo_scores_with_its_own_manager() -> None:
    program = find_program("recipe.dapo.main_dapo")
    assert program is not None
    assert composed(arguments_of(program, [])).reward.reward_manager.name == "dapo"
    chosen = arguments_of(program, ["reward_model.reward_manager=naive"])
    assert composed(chosen).reward.reward_manager.name == "naive"


def test_one_step_off_policy_trains_on_rollouts_of_the_step_before() -> None:
    program = find_program("recipe.one_step_off_policy.main_ppo")
    assert program is not None
    given = ["rollout.nnodes=1", "rollout.n_gpus_per_node=2", "actor_rollout_ref.hybrid_engine=False"]
    config = composed(arguments_of(program, given))
    assert config.trainer.max_staleness == 1
    assert (config.rollout.nnodes, config.rollout.n_gpus_per_node) == (1, 2)
    assert composed(arguments_of(program, [*given, "trainer.max_staleness=3"])).trainer.max_staleness == 3
    bypass = [values("one_step_off_ppo_trainer", v)["algorithm.rollout_correction.bypass_mode"] for v in ("0.6", "0.7")]
    assert bypass == [False, True]


def test_every_refused_program_has_one_line() -> None:
    for name, reason in table()["refused"].items():
        program = find_program(f"{name}.main")
        assert program is not None, name
        assert (program.command, program.reason) == ("", reason), name
        assert "\n" not in reason, name
        assert len(reason) < 250, name


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        ("python3 -u -m recipe.prime.main_prime a=1", "recipe.prime.main_prime"),
        ("python3 -X faulthandler -m verl.trainer.main_ppo -m x", "verl.trainer.main_ppo"),
        ("python3 train.py -m x", ""),
        ("python3", ""),
    ],
)
def test_the_module_that_python_runs(argv: str, module: str) -> None:
    assert started_module(argv.split()) == module


def verl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", "verl", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_that_is_not_served_ends_with_a_line(tmp_path: Path) -> None:
    for folder in ("prime", "mine"):
        (tmp_path / "recipe" / folder).mkdir(parents=True)
    (tmp_path / "recipe/prime/main_prime.py").write_text("print('the checkout ran')\n")
    (tmp_path / "recipe/mine/main.py").write_text("from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n")
    (tmp_path / "recipe/mine/data.py").write_text("import sys; print('rows', sys.argv[1:])\n")
    expected = {
        "recipe.prime.main_prime": (2, "recipe.prime.main_prime is not served: it trains a reward model"),
        "recipe.nowhere.main": (2, "recipe.nowhere.main is not served"),
        "recipe.mine.main": (1, "recipe/mine/main.py:1 asks for verl.trainer.ppo"),
        "recipe.mine.data": (0, ""),
    }
    for module, (code, line) in expected.items():
        run = verl(tmp_path, "python3", "-m", module, "a.b=1")
        assert run.returncode == code, run.stderr
        assert line in run.stderr
        assert "Traceback" not in run.stderr
        assert len(run.stderr.splitlines()) == bool(line)
    assert run.stdout == "rows ['a.b=1']\n"


def test_a_job_for_ray_runs_under_agentrl_too(tmp_path: Path) -> None:
    assert job_words(["ray", "status"]) == ["ray", "status"]
    assert job_words(["ray", "job", "submit", "--", "agentrl", "verl", "x"])[4:] == ["agentrl", "verl", "x"]
    ray = tmp_path / "ray"
    ray.write_text("#!/usr/bin/env python3\nimport sys\nprint(*sys.argv[1:])\n")
    ray.chmod(0o755)
    run = verl(tmp_path, "./ray", "job", "submit", "--no-wait", "--", "python3", "-m", "verl.trainer.main_ppo", "a=b c")
    assert run.stdout == "job submit --no-wait -- agentrl verl python3 -m verl.trainer.main_ppo a=b c\n"


def test_check_names_programs_that_are_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("x=1\npython3 -m recipe.spin.main_spin \\\n  a.b=1\npython3 my_trainer.py data.train_files=x\n")
    assert main(["config", "check", str(script)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("run.sh:2 recipe.spin.main_spin is not served: it trains on pairs")
    assert shown[1].startswith("run.sh:4 my_trainer.py is not served")
    assert len(shown) == 2


def test_check_takes_the_scripts_arguments_and_each_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    run = "python3 -m verl.trainer.main_ppo"
    script.write_text(f"for lr in 1e-6 2e-6; do {run} actor.optim.lr=$lr rollout.n=${{1:-4}} data.shuffle=True; done\n")
    assert main(["config", "check", str(script), "16"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("verl.trainer.main_ppo as settings of agentrl train") == 2
    assert shown.count("rollout.n=16") == 1
    assert "3 settings: 3 are unchanged, 2 as above" in shown


def test_a_file_beside_the_program_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Hydra looks: `config` beside the program's own file, and what --config-path names there."""
    for folder in ("config", "more"):
        (tmp_path / "recipe/dapo" / folder).mkdir(parents=True)
        (tmp_path / "recipe/dapo" / folder / "mine.yaml").write_text(f"trainer: {{project_name: {folder}}}\n")
    monkeypatch.chdir(tmp_path)
    program = find_program("recipe.dapo.main_dapo")
    assert program is not None
    for words, folder in (([], "config"), (["--config-path=more"], "more")):
        given = [*words, "--config-name=mine.yaml", "rollout.n=4"]
        assert f"--config-path=recipe/dapo/{folder}" in arguments_of(program, given)
        script = tmp_path / "run.sh"
        script.write_text(f"python3 -m recipe.dapo.main_dapo {' '.join(given)}\n")
        (source,) = read_sources(script)
        assert [one.value for one in source.settings] == [folder, 4]
    assert "--config-path=recipe/dapo/config" not in arguments_of(program, ["--config-name=other"])
    script.write_text("python3 -m recipe.dapo.main_dapo --config-name=other\n")
    assert "no such file" in read_sources(script)[0].mistakes[0][1]


@pytest.mark.parametrize(("folder", "fine"), [("config", True), ("./config", True), ("/there/config", False)])
def test_verls_own_folder_needs_no_checkout(folder: str, fine: bool, tmp_path: Path) -> None:
    words = [f"--config-path={folder}", "--config-name=ppo_trainer"]
    program = find_program("verl.trainer.main_ppo")
    assert program is not None
    assert (words[0] not in arguments_of(program, words)) == fine
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m {program.name} {' '.join(words)} rollout.n=4\n")
    (source,) = read_sources(script)
    assert bool(source.mistakes) != fine


def test_a_variable_that_is_not_set_stops_where_a_run_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GPUS", "KL", "FILE", "SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "run.sh"
    run = "python3 -m verl.trainer.main_ppo"
    script.write_text(
        f"{run} actor.use_kl_loss=$KL data.train_files=$FILE \\\n  trainer.n_gpus_per_node=$GPUS rollout.n=4 "
        "rollout.chat_scheduler=$SCHEDULER\n"
    )
    assert main(["config", "check", str(script)]) == 1
    said = capsys.readouterr().out
    assert "$GPUS is not set, so the shell passes nothing; must be int" in said
    assert "not set while $SCHEDULER is not" in said
    with pytest.raises(UserError, match="must be int"):
        resolve(["trainer.n_gpus_per_node="], checks=())
    monkeypatch.setenv("GPUS", "4")
    assert main(["config", "check", str(script)]) == 0
    assert resolve(["actor.use_kl_loss=", "data.train_files="], checks=()).config.actor.use_kl_loss is False


def test_what_bash_does_not_pass_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo \\\n  rollout.n=4 \\ \n  data.shuffle=False\n")
    assert main(["config", "check", str(script)]) == 1
    shown = capsys.readouterr().out
    assert "2 ✗ an empty word is passed here" in shown
    assert "3 ! data.shuffle=False  is not passed: the command ends above it" in shown


@pytest.mark.parametrize(
    "setting",
    [
        "reward_model.use_reward_loop=True",
        "reward.custom_reward_function.name=null",
        "+actor_rollout_ref.rollout.sglang_rollout_mode=server",
        "+actor_rollout_ref.model.torch_dtype=bfloat16",
        "actor_rollout_ref.rollout.server.max_attempts=3",
        "reward_model.model.type=discriminative",
        "+trainer.tensorboard_dir=logs",
    ],
)
def test_keys_of_scripts_compose(setting: str) -> None:
    assert resolve([setting], checks=()).config
