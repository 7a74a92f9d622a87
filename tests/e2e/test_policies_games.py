"""A game of two policies: a side's tokens and rewards train its own policy, and no other."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config import compose
from agentrl.tracking import load_trajectories
from agentrl.train import train
from tests.e2e.conftest import figures

pytestmark = pytest.mark.integration

NAMES = ("mover", "answerer")
GAME = """
from types import SimpleNamespace

from textarena import GAME_ID, ObservationType


class Duel:
    def __init__(self, paid):
        self.paid = paid

    def reset(self, num_players, seed):
        self.said, self.state = [f"Go on from {seed}."], SimpleNamespace(role_mapping={}, current_player_id=0)

    def get_observation(self):
        return self.state.current_player_id, [(GAME_ID, self.said[-1] or "nothing", ObservationType.GAME_MESSAGE)]

    def step(self, action):
        self.said.append(action)
        self.state.current_player_id = 1 - self.state.current_player_id
        return len(self.said) == 3, {}

    def close(self):
        texts = ["".join(self.said[1 + side :: 2]) for side in (0, 1)]
        shares = [sum(map(str.islower, text)) / (len(text) or 1) for text in texts]
        return {side: shares[side] if side in self.paid else 0.0 for side in (0, 1)}, {}
"""
Adapters = list[dict[str, torch.Tensor]]


def played(folder: Path, model: Path, paid: list[int], steps: int = 1) -> tuple[Path, Adapters]:
    """A run in which the sides `paid` are paid for what they say, and the others always the same; the adapters of both
    after its first step."""
    run_dir = folder / f"paid-{'-'.join(map(str, paid))}"
    run_dir.mkdir()
    (run_dir / "duel.py").write_text(GAME)
    entry = f'duel: {{textarena: "duel.py:Duel", kwargs: {{paid: {paid}}}, sides: all, unfinished_reward: 0, rows: 8}}'
    (run_dir / "environments.yaml").write_text(entry)
    settings = [
        f"model.path={model}",
        f"data.environment_config_path={run_dir / 'environments.yaml'}",
        "data.train_files=env:duel",
        "data.val_files=null",
        "data.max_prompt_length=128",
        "data.max_response_length=64",
        "data.train_batch_size=2",
        "actor.ppo_mini_batch_size=2",
        "rollout.name=hf",
        "rollout.n=4",
        "rollout.deterministic=true",
        f"model.policies=[{','.join(NAMES)}]",
        "model.lora_rank=4",
        "actor.optim.lr=1e-2",
        "actor.optim.weight_decay=0",
        "actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "trainer.live=false",
        "trainer.device=cpu",
        "trainer.save_freq=1",
        "trainer.max_actor_ckpt_to_keep=null",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={run_dir}",
    ]
    train(compose(settings, config_name="game"))
    exported = run_dir / "checkpoints/global_step_1/huggingface"
    return run_dir, [load_file(f / "adapter_model.safetensors") for f in (exported, exported / NAMES[1])]


def talker(model: Path, folder: Path) -> Path:
    """A model whose turns are short: every second token ends them."""
    shutil.copytree(model, folder)
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    ends = [*range(0, json.loads((model / "config.json").read_text())["vocab_size"], 2)]
    own = json.loads((model / "config.json").read_text()).get("eos_token_id")
    file.write_text(json.dumps(settings | {"eos_token_id": sorted({own, *ends} - {None})}))
    return folder


def moved(adapter: dict[str, torch.Tensor]) -> bool:
    return any(tensor.any() for name, tensor in adapter.items() if "lora_B" in name)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(tensor, other[name], atol=1e-7) for name, tensor in one.items())


@pytest.mark.timeout(600)
@pytest.mark.prevents("a side of a game trains the policy of another side")
def test_each_side_trains_its_own_policy_alone(tmp_path: Path, task: Path) -> None:
    pytest.importorskip("textarena")
    model = talker(task / "model", tmp_path / "model")
    both, (mover, answerer) = played(tmp_path, model, [0, 1], steps=2)
    (_, (mover_alone, idle)), (_, (rests, answerer_alone)) = (played(tmp_path, model, [side]) for side in (0, 1))
    assert [moved(one) for one in (mover, answerer, mover_alone, answerer_alone)] == [True] * 4
    assert not moved(idle)
    assert not moved(rests)
    assert same(mover, mover_alone)
    assert same(answerer, answerer_alone)
    assert not same(mover, answerer)
    step = figures(both)[-1]
    assert max(step["rollout_gap/max"], step["answerer/rollout_gap/max"]) < 1e-4
    games = [game for game in load_trajectories(both / "rollouts/1.jsonl") if len(game["sides"]) > 1]
    assert {tuple(game["sides"]) for game in games} == {(0, 1)}
    assert len({game["side_rewards"][1] for game in games}) > 1
