"""A run on a real server that it starts and stops itself."""

import subprocess
from pathlib import Path

import pytest

from agentrl.engines.servers.installation import find_python
from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl

SIGNS = {"sglang": "agentrl_standby", "vllm": "agentrl_worker"}
ADAPTER = ["model.lora_rank=4", "model.lora_merge=false", "actor.optim.lr=1e-2", "actor.entropy_coeff=0.1"]
"""The entropy moves it, where nothing is right yet."""
AGENT = """
import openai


def play(prompt, openai_url, key):
    client = openai.OpenAI(base_url=openai_url, api_key=key)
    said = [{"role": "user", "content": prompt}]
    try:
        for _ in range(2):
            answer = client.chat.completions.create(model="policy", messages=said, max_tokens=20)
            said += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Sure?"}]
    except openai.BadRequestError:  # no room for another turn
        pass
"""


@pytest.mark.prevents("interactions silently do not run with one of the engines")
@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "ranks", "turns"),
    [("sglang", 1, True), ("vllm", 1, True), ("vllm", 1, False), ("sglang", 2, True), ("vllm", 2, True)],
)
def test_a_run(engine: str, ranks: int, turns: bool, tmp_path: Path, overrides: list[str]) -> None:
    """Over several turns, and over one."""
    run(engine, ranks, tmp_path, [*overrides, f"rollout.multi_turn.enable={str(turns).lower()}"])


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_run_of_an_agent_program(engine: str, tmp_path: Path, overrides: list[str]) -> None:
    """Through the gateway, with updates in flight: what is trained on is what the server drew."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agents.yaml").write_text("- name: mine\n  python: agent.play\n")
    agent = [f"rollout.agent.agent_loop_config_path={tmp_path / 'agents.yaml'}"]
    run(engine, 1, tmp_path, [*overrides, *agent, "rollout.agent.default_agent_loop=mine", "trainer.max_staleness=1"])


@pytest.mark.engine
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("engine", "ranks"), [("sglang", 1), ("vllm", 2)])
def test_an_adapter_and_a_run_that_goes_on(engine: str, ranks: int, tmp_path: Path, overrides: list[str]) -> None:
    """Two ranks gather what each has of it; the second run's server begins with the adapter that was saved."""
    run(engine, ranks, tmp_path, [*overrides, *ADAPTER])
    run(engine, ranks, tmp_path, [*overrides, *ADAPTER], steps=3)
    assert all(line["actor/grad_norm"] > 0.01 for line in read_metrics(tmp_path / "metrics.jsonl")[1:])


def run(engine: str, ranks: int, tmp_path: Path, overrides: list[str], *, steps: int = 2) -> None:
    """Train, and see that the engine drew from the policy and left nothing."""
    if find_python(engine, engine) is None:
        pytest.skip(f"`agentrl engine install {engine} --cpu` was not run")
    weights = tmp_path / "weights"
    weights.mkdir(exist_ok=True)
    changes = [f"rollout.name={engine}", "rollout.weight_check=always"]
    short = [f"trainer.total_training_steps={steps}", "trainer.test_freq=-1", "rollout.start_timeout=1200"]
    fire = ["rollout.use_fire_sampling=true"]  # a request for candidates, then one for the rest
    many = ["trainer.device=cpu", f"trainer.n_gpus_per_node={ranks}", "ray_init.address=local"]
    where = [f"trainer.default_local_dir={tmp_path}", f"rollout.weight_dir={weights}"]
    agentrl("train", *overrides, *changes, *short, *fire, *many, *where, timeout=1500)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[-1]["step"] == steps
    for step in lines[1:]:
        # Both compute in float32; the second step's tokens were drawn by weights that the first one made.
        assert step["rollout_gap/mean"] < 1e-3
        assert step["rollout/ledger_violations"] == 0
    assert SIGNS[engine] in (tmp_path / f"engine/{engine}-0.log").read_text()
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert not left.stdout
    assert not list(weights.iterdir())
