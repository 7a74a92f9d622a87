"""Several policies on one base: each learns from its own tokens and its own rewards."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config import compose
from agentrl.tracking import load_trajectories
from agentrl.train import train
from agentrl.training.checkpoint.merge import merge
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
    merge(exported.parent, tmp_path / "merged")
    for folder, trained in ((tmp_path / "merged", buyer), (tmp_path / "merged/seller", seller)):
        written = load_file(folder / "adapter_model.safetensors")
        assert all(torch.equal(written[name], trained[name]) for name in trained)
    merge(exported.parent, tmp_path / "merged", adapter=True, overwrite=True)
    first, second = (AutoModelForCausalLM.from_pretrained(folder) for folder in (tmp_path / "merged", folder))
    assert not (folder / "adapter_config.json").exists()
    assert not torch.equal(first.get_output_embeddings().weight, second.get_output_embeddings().weight)
    shutil.rmtree(whole / "checkpoints/global_step_12")
    run(tmp_path, overrides, "whole", 12)
    assert figures(whole)[-1] == last


def adapters(run_dir: Path, step: int) -> list[dict[str, torch.Tensor]]:
    folder = run_dir / f"checkpoints/global_step_{step}/huggingface"
    return [load_file(one / "adapter_model.safetensors") for one in (folder, folder / "seller")]


LORA = LoraConfig(r=8, lora_alpha=32, target_modules=["down_proj", "q_proj"])
SHORT = ["rollout.n=2", "data.train_batch_size=2", "actor.ppo_mini_batch_size=2"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "ahead"), [("vllm", 0), ("sglang", 1), ("hf", 1)])
def test_each_policys_tokens_are_from_its_adapter_of_their_version(
    engine: str, ahead: int, tmp_path: Path, task: Path, overrides: list[str]
) -> None:
    """A stand-in for a server computes with what was loaded by name, and the trainer with what it trains. The
    checkpoints of all steps say which log-prob each token had under the weights of its version."""
    with serving(str(task / "model")) as (url, server):
        served = [] if engine == "hf" else [f"rollout.base_url={url}", "rollout.weight_check=always"]
        settings = [f"rollout.name={engine}", "model.target_modules=[down_proj,q_proj]", "trainer.save_freq=1"]
        kept = [f"trainer.max_staleness={ahead}", "trainer.max_actor_ckpt_to_keep=null"]
        found = run(tmp_path, overrides, "served", 4, *served, *settings, *kept, *SHORT)
    steps = [step for step in figures(found) if "reward/buyer" in step]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert {*server.loads} == {*server.asked} == ({*NAMES} if served else set())
    trajectories = [t for number in range(1, 5) for t in load_trajectories(found / f"rollouts/{number}.jsonl")]
    assert len({t["key"] for t in trajectories}) == len(trajectories) == 16
    versions = compared(found, task / "model", trajectories)
    assert len(versions) > 1 if ahead else versions == {0, 1, 2, 3}


def compared(run_dir: Path, base: Path, trajectories: list[dict[str, Any]]) -> set[int]:
    """Compare log-probs of tokens with those of their version's adapters by plain peft; returns the versions."""
    model = PeftModel(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LORA).eval()
    found = set[int]()
    for sample, side in ((s, side) for t in trajectories for s, side in zip(t["samples"], t["sides"], strict=True)):
        ids, drawn = torch.tensor([sample["columns"]["ids"]]), torch.tensor(sample["columns"]["logprobs"])
        versions = torch.tensor([s["version"] if s["mask"] else -1 for s in sample["segments"] for _ in range(s["n"])])
        for version in {*versions.tolist()} - {-1}:
            for name, tensor in adapters(run_dir, version)[side].items() if version else ():
                model.get_parameter(name.replace(".weight", ".default.weight")).data = tensor
            with torch.no_grad(), model.disable_adapter() if not version else nullcontext():
                own = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            made = versions[1:] == version
            torch.testing.assert_close(own[made], drawn[1:][made], atol=3e-4, rtol=0)
            found.add(version)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def test_two_ranks_train_the_same_policies_as_one_process(
    engine: str, tmp_path: Path, task: Path, overrides: list[str]
) -> None:
    """Each rank has half of the tensors of each adapter; a second run continues from the checkpoint of the two."""
    pytest.importorskip("ray")
    two = ["trainer.n_gpus_per_node=2", "ray_init.address=local", "ray_init.num_cpus=4"]
    with serving(str(task / "model")) as (url, _):
        served = [] if engine == "hf" else [f"rollout.base_url={url}", "rollout.weight_check=always"]
        settings = [f"rollout.name={engine}", "model.target_modules=[down_proj,q_proj]", "trainer.device=cpu"]
        settings += [*served, "trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=null", "data.train_batch_size=4"]
        settings += [
            "actor.ppo_mini_batch_size=2",
            "actor.optim.lr=1e-3",
        ]  # so log-probs are computed before the update
        alone = run(tmp_path, overrides, "alone", 2, *settings)
        both = run(tmp_path, overrides, "both", 2, *settings, *two)
        for mine, theirs in zip(figures(both), figures(alone), strict=True):
            assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-3, abs=1e-4)
        run(tmp_path, overrides, "both", 3, *settings)
        run(tmp_path, overrides, "alone", 3, *settings)
    for step in (2, 3):
        for mine, theirs in zip(adapters(both, step), adapters(alone, step), strict=True):
            for name in theirs:
                torch.testing.assert_close(mine[name], theirs[name], atol=1e-4, rtol=1e-3)
