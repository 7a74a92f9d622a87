"""Supervised fine-tuning on rollouts: those of a run, and those of `agentrl generate`."""

import json
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.chat import Chat
from agentrl.cli.main import main
from agentrl.config.schema import Model
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError
from agentrl.tasks.models import tiny as tiny_model
from agentrl.tracking import load_trajectories
from agentrl.training import load_tokenizer
from agentrl.training.sft.conversations import Conversations, read_conversations

pytestmark = pytest.mark.integration

SMALL = {"data.max_response_length": 12, "rollout.n": 4, "trainer.device": "cpu"}


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    return str(a + b)


def even(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(len(solution_str) % 2 == 0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and a run of one step with it."""
    home = tmp_path_factory.mktemp("rollouts")
    texts = [{"messages": [{"role": "user", "content": f"What is {n} + 1?"}]} for n in range(9)]
    (home / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    shape = tiny_model.TinyShape(vocab_size=400, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    tiny_model.prepare(home / "model", [home / "texts.jsonl"], shape=shape, seed=0)
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = SMALL | {
        "model.path": str(home / "model"),
        "data.train_batch_size": 4,
        "actor.ppo_mini_batch_size": 4,
        "trainer.default_local_dir": str(home / "run"),
        "trainer.total_training_steps": 1,
    }
    agentrl.train(settings, rows=rows, tools=[add], reward=even)
    return home


def read(home: Path, file: Path, **fields: Any) -> Conversations:
    chat = Chat(load_tokenizer(Model(path=str(home / "model"))), check="disable")
    return read_conversations(SftData(train_files=str(file), **fields), chat)


def test_recorded_tokens_of_good_trajectories_are_trained_on(home: Path, tmp_path: Path) -> None:
    [dump] = (home / "run/rollouts").glob("*.jsonl")
    records = load_trajectories(dump)
    records[0]["outcome"] = "infra_error"
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    found = read(home, file, min_reward=1.0)
    good = [record["samples"][0]["columns"] for record in records[1:] if record["reward"] == 1]
    assert [(list(ledger.ids), list(ledger.mask)) for ledger in found.ledgers] == [(c["ids"], c["mask"]) for c in good]
    assert 0 < len(good) < len(records)
    assert found.below == len(records) - len(good)


def test_rollouts_are_refused_without_a_least_reward(home: Path) -> None:
    [dump] = (home / "run/rollouts").glob("*.jsonl")
    with pytest.raises(UserError, match=r"jsonl:1 is a rollout: set data\.min_reward"):
        read(home, dump)
    with pytest.raises(UserError, match=r"none of 16 rollouts has a reward of data\.min_reward=2"):
        read(home, dump, min_reward=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": [{"columns": {"ids": [1, 10**9], "mask": [0, 1]}, "segments": []}]}, "not tokens of model.path"),
        ({"samples": [{"columns": {}}]}, "is no recorded trajectory: KeyError"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "with images cannot be trained on"),
    ],
)
def test_a_damaged_record_is_named(home: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    [dump] = (home / "run/rollouts").glob("*.jsonl")
    (tmp_path / "bad.jsonl").write_text(json.dumps(load_trajectories(dump)[0] | change))
    with pytest.raises(UserError, match=message):
        read(home, tmp_path / "bad.jsonl", min_reward=0)


def test_tokens_of_another_tokenizer_are_refused(home: Path, tmp_path: Path) -> None:
    [dump] = (home / "run/rollouts").glob("*.jsonl")
    record = load_trajectories(dump)[0]
    record["samples"][0]["columns"]["ids"][:2] = [9, 9]
    (tmp_path / "other.jsonl").write_text(json.dumps(record))
    with pytest.raises(UserError, match="another tokenizer"):
        read(home, tmp_path / "other.jsonl", min_reward=0)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_what_generate_wrote_is_trained_on_with_its_tools(home: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(len(solution_str) % 2 == 0)\n"
    )
    (tmp_path / "adder.py").write_text(
        "from agentrl.tools import function_tool\n\n\n@function_tool\ndef add(a: int, b: int) -> str:\n"
        "    '''Add.\n\n    Args:\n        a: One.\n        b: Two.\n    '''\n    return str(a + b)\n"
    )
    out, small = tmp_path / f"answers.{ending}", [f"{key}={value}" for key, value in SMALL.items()]
    model = f"model.path={home / 'model'}"
    tools = ["rollout.multi_turn.enable=true", f"rollout.multi_turn.function_tool_path={tmp_path / 'adder.py'}"]
    reward = f"reward.custom_reward_function.path={tmp_path / 'reward.py'}"
    paths = [f"data.path={home / 'rows.jsonl'}", f"data.output_path={out}"]
    assert main(["generate", model, *paths, reward, *small, *tools]) == 0
    found = read(home, out, min_reward=1.0)
    assert 0 < len(found.ledgers) < 16
    assert found.below == 16 - len(found.ledgers)
    text = load_tokenizer(Model(path=str(home / "model"))).decode(list(found.ledgers[0].ids))
    assert "add(a: integer, b: integer)" in text
    warm = ["trainer.device=cpu", f"trainer.output_dir={tmp_path / 'warm'}", "data.min_reward=1"]
    assert main(["sft", model, f"data.train_files={out}", *warm]) == 0
