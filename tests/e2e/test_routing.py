"""Replay of routing through the command line: the trainer computes with the experts that the engine chose."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.e2e.conftest import agentrl, figures

pytestmark = pytest.mark.integration

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [],
    "initializer_range": 0.1,
    "bos_token_id": None,
}


@pytest.fixture(scope="module")
def experts(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with the tokenizer of the dense model."""
    folder, tokenizer = tmp_path_factory.mktemp("experts"), AutoTokenizer.from_pretrained(task / "model")
    torch.manual_seed(0)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **ends, vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.prevents("the trainer routes tokens to other experts than the engine did")
def test_the_trainer_replays_the_experts_of_the_engine(experts: Path, overrides: list[str], tmp_path: Path) -> None:
    run = [f"model.path={experts}", f"trainer.default_local_dir={tmp_path}", "actor.router_replay.mode=R3"]
    fast = ["actor.optim.lr=1e-2", "actor.ppo_mini_batch_size=2", "actor.entropy_coeff=0.01", "trainer.test_freq=-1"]
    agentrl("train", *overrides, *run, *fast, "trainer.total_training_steps=2", "trainer.val_before_train=false")
    first, second = figures(tmp_path)
    for step in (first, second):
        assert step["routing/replayed"] == 1.0
        assert step["rollout_gap/mean"] < 1e-5
        assert step["rollout/ledger_violations"] == 0.0
    assert second["routing/differs"] > 0.0
