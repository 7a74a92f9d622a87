"""Several policies on one base: each learns from its own tokens and its own rewards."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config import compose
from agentrl.tracking import load_trajectories
from agentrl.train import train
from tests.e2e.conftest import figures
from tests.engines.adapter_server import serving

pytestmark = pytest.mark.integration

NAMES = ("buyer", "seller")
AGENT = """
import httpx


async def play(openai_url, key, prompt):
    said, headers = [{"role": "user", "content": prompt}], {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=None) as client:
        for name in ("buyer", "seller"):
            asked = {"model": name, "messages": said, "max_tokens": 8}
            (await client.post(f"{openai_url}/chat/completions", json=asked)).raise_for_status()
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, trajectory):
    answers = [ledger.ids[ledger.prompt_length :] for ledger in trajectory.ledgers]
    buyer, seller = (sum(token < 150 for token in answer) / len(answer) for answer in answers)
    return {"score": 0.0, "buyer": buyer, "seller": 1 - seller}
"""


def run(folder: Path, overrides: list[str], name: str, steps: int, *settings: str) -> Path:
    (folder / "agent.py").write_text(AGENT)
    (folder / "agents.yaml").write_text("- name: two\n  python: agent.play\n")
    (folder / "reward.py").write_text(REWARD)
    common = [
        f"rollout.agent.agent_loop_config_path={folder / 'agents.yaml'}",
        "rollout.agent.default_agent_loop=two",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "model.policies=[buyer,seller]",
        "model.lora_rank=8",
        "rollout.name=hf",
        "rollout.n=4",
        "model.target_modules=[lm_head,down_proj]",
        "actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "actor.optim.lr=2e-2",
        "data.max_response_length=8",
        "data.val_files=null",
        "trainer.live=false",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder / name}",
    ]
    train(compose([*overrides[1:], *common, *settings], config_name="tiny"))
    return folder / name


@pytest.mark.timeout(600)
@pytest.mark.prevents("a policy of several learns from the tokens or the rewards of another")
def test_two_players_learn_different_answers_and_resume(tmp_path: Path, overrides: list[str]) -> None:
    whole = run(tmp_path, overrides, "whole", 12, "trainer.save_freq=10")
    steps = [step for step in figures(whole) if "reward/buyer" in step]
    first, last = steps[0], steps[-1]
    assert all(last[f"reward/{name}"] - first[f"reward/{name}"] > 0.1 for name in NAMES)
    assert max(last["rollout_gap/max"], last["seller/rollout_gap/max"]) < 1e-4  # each is drawn from its own adapter
    assert {tuple(t["sides"]) for t in load_trajectories(whole / "rollouts/12.jsonl")} == {(0, 1)}
    exported = whole / "checkpoints/global_step_12/huggingface"
    buyer, seller = (load_file(folder / "adapter_model.safetensors") for folder in (exported, exported / "seller"))
    assert not any(torch.equal(buyer[name], seller[name]) for name in buyer if "lora_B" in name)
    shutil.rmtree(whole / "checkpoints/global_step_12")
    run(tmp_path, overrides, "whole", 12)
    assert figures(whole)[-1] == last


def adapters(run_dir: Path, step: int) -> list[dict[str, torch.Tensor]]:
    folder = run_dir / f"checkpoints/global_step_{step}/huggingface"
    return [load_file(one / "adapter_model.safetensors") for one in (folder, folder / "seller")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "ahead"), [("sglang", 0), ("vllm", 0), ("sglang", 1)])
def test_servers_draw_each_policys_tokens_from_its_present_adapter(
    engine: str, ahead: int, tmp_path: Path, task: Path, overrides: list[str]
) -> None:
    """A stand-in for the server computes with what was loaded by name, and the trainer with what it trains."""
    with serving(str(task / "model")) as (url, server):
        served = [f"rollout.name={engine}", f"rollout.base_url={url}", "model.target_modules=[down_proj,q_proj]"]
        checked = ["rollout.weight_check=always", "trainer.save_freq=1", f"trainer.max_staleness={ahead}"]
        found = run(tmp_path, overrides, "served", 4, *served, *checked)
    steps = [step for step in figures(found) if "reward/buyer" in step]
    assert len(steps) == 4
    if not ahead:
        assert max(max(one["rollout_gap/max"], one["seller/rollout_gap/max"]) for one in steps) < 1e-4
    assert server.loads == [*NAMES] * 5
    assert set(server.asked) == {*NAMES}
    for number in range(1, 5):
        drawn = load_trajectories(found / f"rollouts/{number}.jsonl")
        assert len(drawn) == 16
    buyer, seller = adapters(found, 4)
    assert not any(torch.equal(buyer[name], seller[name]) for name in buyer if "lora_B" in name)
