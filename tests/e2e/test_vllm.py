"""A run on a real vLLM server that it starts and stops itself."""

import subprocess
from pathlib import Path

import pytest

from agentrl.rollout.engines.remote.place import find_python
from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl

pytestmark = pytest.mark.engine


@pytest.mark.skipif(find_python("vllm", "vllm") is None, reason="`agentrl engine install vllm --cpu` was not run")
@pytest.mark.timeout(1800)
def test_a_run_over_several_turns(tmp_path: Path, overrides: list[str]) -> None:
    changes = ["rollout.name=vllm", "rollout.deterministic=false", "rollout.weight_check=always"]
    short = ["trainer.total_training_steps=2", "trainer.test_freq=-1", "rollout.start_timeout=1200"]
    agentrl("train", *overrides, *changes, *short, f"trainer.default_local_dir={tmp_path}", timeout=1500)
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert steps[-1]["step"] == 2
    for step in steps[1:]:
        # Both compute in float32; the second step's tokens were drawn by weights that the first one made.
        assert step["rollout_gap/mean"] < 1e-3
        assert step["rollout/ledger_violations"] == 0
    assert "agentrl_worker" in (tmp_path / "engine/vllm-0.log").read_text()
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not left.stdout
