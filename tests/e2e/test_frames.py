"""Few layers lie between a training step and what it is for: a reader follows each path in minutes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import compose
from agentrl.engines.hf import HFEngine
from agentrl.train import train
from agentrl.training import load_tokenizer
from tests.frames import follow_tasks_and_threads, frames_since

pytestmark = pytest.mark.integration

CALL = '<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call><|im_end|>'
MOST = {"engine.generate": 16, "tool.execute": 22, "loss": 13, "advantage": 6}
"""Frames of the package from `train_step` on; the function itself, which is the user's, is not counted. A server's
client adds six to an HTTP request: tests/engines/test_remote.py."""
PARTS = """
from agentrl.tools import BaseTool
from tests.e2e.test_frames import note


class Calculator(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        note("tool.execute")
        return "1", 0.0, {}


def mean_loss(logprobs, old_logprobs, advantages):
    note("loss")
    return -advantages * (logprobs - old_logprobs).exp()


def unchanged(rewards, mask, cu_seqlens, trajectory, group):
    note("advantage")
    return rewards, rewards
"""
SHORT = [
    "data.max_response_length=128",
    "data.val_files=null",
    "rollout.n=2",
    "trainer.live=false",
    "trainer.max_rollout_gap=null",
    "trainer.save_freq=-1",
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
]
TOOL = """
tools:
  - class_name: parts.Calculator
    config: {type: native}
    tool_schema: {type: function, function: {name: calculator, parameters: {type: object, properties: {}}}}
"""
found: dict[str, list[str]] = {}


def note(name: str) -> None:
    found.setdefault(name, frames_since("train_step"))


@pytest.mark.timeout(300)
def test_frames_of_a_step(overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = HFEngine.generate

    async def calls_a_tool(self: HFEngine, *args: Any, **kwargs: Any) -> Any:
        note("engine.generate")
        drawn = await generate(self, *args, **kwargs)
        return replace(drawn, token_ids=call, logprobs=[-1.0] * len(call), finish_reason="stop", versions=())

    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "tools.yaml").write_text(TOOL)
    settings = compose([*overrides[1:], *SHORT, *_parts(tmp_path)], config_name="tiny")
    call = [*load_tokenizer(settings.model)(CALL, add_special_tokens=False)["input_ids"]]
    found.clear()
    monkeypatch.setattr(HFEngine, "generate", calls_a_tool)
    follow_tasks_and_threads(monkeypatch)
    train(settings)
    long = {name: (len(chain), chain) for name, chain in found.items() if len(chain) > MOST[name]}
    assert found.keys() == MOST.keys()
    assert not long


def _parts(folder: Path) -> list[str]:
    """Settings that name the functions of PARTS."""
    return [
        f"trainer.default_local_dir={folder}",
        f"rollout.multi_turn.tool_config_path={folder / 'tools.yaml'}",
        f"algorithm.adv_estimator={folder / 'parts.py'}:unchanged",
        f"actor.policy_loss.loss_mode={folder / 'parts.py'}:mean_loss",
    ]
