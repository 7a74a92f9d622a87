"""A server is launched before what it does not wait for, and does not outlive a start that fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.schema import Config, Model, Rollout, Trainer
from agentrl.runtime.starting import start_servers, starting
from agentrl.tracking.start_times import StartTimes

pytestmark = pytest.mark.integration

LAUNCHED = """
import sys
from agentrl.cli.main import main
from agentrl.engines.servers import Replica

def launch(replica):
    print(replica.backend.name, sorted({"torch", "transformers", "peft", "agentrl.train"} & set(sys.modules)))
    raise SystemExit

Replica.launch = launch
main(["train", *sys.argv[1:]])
"""

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def config_of(folder: str) -> Config:
    """The settings of a run whose server only waits."""
    waits = Path(folder) / "waits"
    waits.write_text("#!/bin/sh\nexec sleep 60\n")
    waits.chmod(0o755)
    (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    rollout = Rollout(name="sglang", engine_python=str(waits), weight_dir=folder, deterministic=False)
    trainer = Trainer(device="cpu", default_local_dir=folder)
    return Config(model=Model(path=folder), rollout=rollout, trainer=trainer)


def test_it_is_launched_before_the_libraries_of_models_are_imported(tmp_path: Path) -> None:
    config_of(str(tmp_path))
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):  # there, but not read yet
        (tmp_path / name).write_text("{}")
    (tmp_path / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 16)
    keys = [f"model.path={tmp_path}", f"data.train_files={tmp_path}/rows.jsonl", "data.train_batch_size=16"]
    keys += [
        "rollout.name=sglang",
        f"rollout.engine_python={tmp_path}/waits",
        f"trainer.default_local_dir={tmp_path}-run",
    ]
    keys += ["trainer.device=cpu"]
    told = subprocess.run(
        [sys.executable, "-c", LAUNCHED, *keys],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # else PyTorch counts the idle cores
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == ["sglang", "[]"], told.stderr


def test_ranks_and_servers_on_ray_start_before_them_too() -> None:
    pytest.importorskip("ray")
    heavy = "import sys, agentrl.runtime.ray.servers; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True).stdout.strip() == "set()"


def test_servers_that_no_runtime_takes_are_stopped(tmp_path: Path) -> None:
    with starting(config_of(str(tmp_path)), StartTimes()) as start:
        assert start.servers is not None
        (replica,) = start.servers.replicas
        assert replica.server is not None
        assert replica.server.alive
    assert not replica.server.alive
    assert start.take() is None


def test_several_processes_start_theirs_on_ray(tmp_path: Path) -> None:
    config = config_of(str(tmp_path))
    config.trainer.n_gpus_per_node = 2
    assert start_servers(config).servers is None
