"""Everything but files written for verl works where the verl layer is not installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.models import tiny
from agentrl.tracking import read_metrics

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

from agentrl.core import extensions


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "agentrl_verl" or name.startswith(("agentrl_verl.", "verl")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
extensions.entry_points = lambda **_: ()

from agentrl.cli.main import main

sys.exit(main(sys.argv[1:]))
"""
TOOL = """
from agentrl import function_tool


@function_tool
def double(number: int) -> str:
    \"\"\"Double a number.

    Args:
        number: The number.
    \"\"\"
    return str(2 * number)
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth):
    return float(len(solution_str) % 3)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("What is 2 + 3? The answer is 5.\n" * 50)
    shape = tiny.TinyShape(vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    tiny.prepare(tmp_path / "model", [tmp_path / "texts.txt"], shape=shape)
    (tmp_path / "tools.py").write_text(TOOL)
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"What is {n} + 1?", "reward_model": {"ground_truth": str(n + 1)}} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=600)


def test_a_training_with_a_tool_and_a_reward_function(home: Path) -> None:
    done = run(
        home,
        *("train", "model.path=model", "data.train_files=rows.jsonl", "data.train_batch_size=2", "rollout.n=2"),
        *("data.max_prompt_length=512", "data.max_response_length=6", "actor.ppo_mini_batch_size=2"),
        *("rollout.multi_turn.enable=true", "rollout.multi_turn.function_tool_path=tools.py"),
        "reward.custom_reward_function.path=reward.py",
        *("trainer.device=cpu", "trainer.total_training_steps=2", "trainer.default_local_dir=run"),
    )
    assert done.returncode == 0, done.stderr
    assert [step["step"] for step in read_metrics(home / "run/metrics.jsonl")][-1] == 2


def test_its_commands_and_names_are_not_there(home: Path) -> None:
    assert "verl " not in run(home, "--help").stdout.split("Inspect")[0].split("Train")[1]
    assert "no such command" in run(home, "verl", "bash", "run.sh").stderr
    assert "unknown key actor_rollout_ref.rollout.n" in run(home, "train", "actor_rollout_ref.rollout.n=2").stderr
    explained = run(home, "config", "explain", "rollout.n").stdout
    assert "Trajectories per prompt" in explained
    assert "verl" not in explained
    assert run(home, "config", "check", "run.sh").returncode == 2
