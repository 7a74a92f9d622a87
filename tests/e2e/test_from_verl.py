"""A launch script, its YAML files and its data script, as they are kept for verl, run with `agentrl verl`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import environment

pytestmark = pytest.mark.integration

FILES = Path(__file__).parents[1] / "from_verl" / "files"


def verl(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", "verl", *args]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a person's checkout, with a verl in it that must not run."""
    folder = shutil.copytree(FILES, tmp_path / "checkout")
    for module in (
        "__init__",
        "trainer/__init__",
        "trainer/main_ppo",
        "trainer/sft_trainer",
        "model_merger/__init__",
        "model_merger/__main__",
    ):
        file = folder / "verl" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'raise SystemExit("the checkout\'s own {module}")\n')
    return folder


def test_a_launch_script_and_its_data_script(checkout: Path, task: Path) -> None:
    made = verl(checkout, "python3", "make_gsm8k.py", "--local_dir", "data")
    assert made.returncode == 0, made.stderr
    here = {  # what a person has to change for a CPU, a tiny model and a test
        "actor_rollout_ref.model.path": task / "model",
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "data.train_batch_size": 2,
        "data.max_prompt_length": 512,
        "data.max_response_length": 32,
        "data.train_files": "data/train.parquet",
        "data.val_files": "null",
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": "console",
        "trainer.total_training_steps": 1,
        "trainer.default_local_dir": "runs/one",
    }
    run = verl(
        checkout, "--as", "0.5", "bash", "run_gsm8k_multiturn.sh", *(f"{key}={value}" for key, value in here.items())
    )
    assert run.returncode == 0, run.stderr
    assert "agentrl verl: verl.trainer.main_ppo runs as `agentrl train`\n" in run.stderr
    assert "verl 0.5's defaults (--as) for what is not set: algorithm.rollout_correction.rollout_is=null" in run.stderr
    assert "rollout.multi_turn.max_tool_response_length=256" in run.stderr
    assert "reward.tool_weight=0.0" in run.stderr
    assert run.stderr.count("verl 0.5's defaults") == 1
    dump = next((checkout / "runs/one/rollouts").glob("*.jsonl"))
    assert "calc_gsm8k_reward" in json.dumps(json.loads(dump.read_text().splitlines()[0])["messages"])
    merged = verl(
        checkout,
        *("python3", "-m", "verl.model_merger", "merge", "--backend", "fsdp"),
        *("--local_dir", "runs/one/checkpoints/global_step_1/actor", "--target_dir", "merged"),
    )
    assert merged.returncode == 0, merged.stderr
    assert list((checkout / "merged").glob("*.safetensors"))


def test_an_sft_script(checkout: Path, task: Path) -> None:
    """Of torchrun's two processes one does nothing; how many train is a setting, here of the command line."""
    info = [{"question": f"What is {i} and 3?", "answer": f"It is {i + 3}.\n#### {i + 3}"} for i in range(8)]
    pq.write_table(pa.Table.from_pylist([{"extra_info": row} for row in info]), checkout / "train.parquet")
    here = (f"model.path={task / 'model'}", "trainer.device=cpu", "trainer.n_gpus_per_node=1")
    small = ("data.train_batch_size=4", "trainer.total_training_steps=1", "trainer.merge_lora=false")
    run = verl(checkout, "bash", "run_gsm8k_sft.sh", "2", "out/sft", *here, *small)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("agentrl verl: verl.trainer.sft_trainer runs as `agentrl sft`\n") == 1
    assert "8 conversations, 1 step" in run.stderr
    adapter = json.loads((checkout / "out/sft/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (8, 16)


def test_what_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    upload = ("--local_dir", "a", "--target_dir", "b", "--hf_upload_path", "me/model")
    done = verl(tmp_path, "python3", "-m", "verl.model_merger", "merge", "--backend", "fsdp", *upload)
    assert (done.returncode, done.stderr) == (
        2,
        "error: verl.model_merger: nothing is uploaded; remove --hf_upload_path\n",
    )
