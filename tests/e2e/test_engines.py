"""A run on a real server that it starts and stops itself."""

import subprocess
from pathlib import Path

import pytest

from agentrl.rollout.engines.remote.place import find_python
from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl

SIGNS = {"sglang": "sglang.launch_server", "vllm": "agentrl_worker"}


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "ranks", "turns"), [("sglang", 1, True), ("vllm", 1, True), ("vllm", 1, False), ("sglang", 2, True)]
)
def test_a_run(engine: str, ranks: int, turns: bool, tmp_path: Path, overrides: list[str]) -> None:
    """Over several turns, and over one."""
    if find_python(engine, engine) is None:
        pytest.skip(f"`agentrl engine install {engine} --cpu` was not run")
    weights = tmp_path / "weights"
    weights.mkdir()
    changes = [f"rollout.name={engine}", "rollout.deterministic=false", "rollout.weight_check=always"]
    short = ["trainer.total_training_steps=2", "trainer.test_freq=-1", "rollout.start_timeout=1200"]
    fire = ["rollout.use_fire_sampling=true"]  # a request for candidates, then one for the rest
    many = ["trainer.device=cpu", f"trainer.n_gpus_per_node={ranks}", f"trainer.default_local_dir={tmp_path}"]
    over = [f"rollout.multi_turn.enable={str(turns).lower()}", f"rollout.weight_dir={weights}"]
    agentrl("train", *overrides, *changes, *short, *fire, *many, *over, timeout=1500)
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert steps[-1]["step"] == 2
    for step in steps[1:]:
        # Both compute in float32; the second step's tokens were drawn by weights that the first one made.
        assert step["rollout_gap/mean"] < 1e-3
        assert step["rollout/ledger_violations"] == 0
    assert SIGNS[engine] in (tmp_path / f"engine/{engine}-0.log").read_text()
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not left.stdout
    assert not list(weights.iterdir())
