"""A tiny model and rows for it, made once."""

import json
from pathlib import Path

import pytest

from agentrl.tasks.models import tiny

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    if solution_str == "boom":
        raise RuntimeError("no verdict")
    return {"score": float(str(ground_truth) in solution_str) + bonus, "length": len(solution_str)}

def batched(data_sources, solution_strs, ground_truths, extra_infos):
    return [float(str(truth) in answer) for truth, answer in zip(ground_truths, solution_strs)]
"""


def row(i: int, **more: object) -> dict[str, object]:
    return {
        "data_source": "odd" if i % 2 else "even",
        "prompt": [{"role": "user", "content": f"What is {i} and 1?"}],
        "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
        "extra_info": {"index": i},
        **more,
    }


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with model/, rows.jsonl (6 rows) and reward.py."""
    home = tmp_path_factory.mktemp("evaluation")
    lines = [json.dumps(row(i)) for i in range(6)]
    (home / "rows.jsonl").write_text("\n".join(lines))
    (home / "reward.py").write_text(REWARD)
    shape = tiny.TinyShape(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    tiny.prepare(home / "model", [home / "rows.jsonl"], shape=shape, seed=0)
    return home
