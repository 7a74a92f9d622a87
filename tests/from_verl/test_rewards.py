"""verl's GSM8K tool example: a right answer that was also handed to the tool is worth 1, as in verl, and not 2."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core.sandbox import Sandbox
from agentrl.engines.engine import Sampling
from agentrl.interactions import load_interactions
from agentrl.rollout.building import check_scores, scorer
from agentrl.rollout.loops import ToolAgent
from agentrl.rollout.scheduler import Scheduler
from agentrl.tools import load_tools
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory
from agentrl_verl.reading.versions import VARIABLE
from tests.rollout.scripted import END, calls, environment, tokenizer

FILES = Path(__file__).parent / "files/config"
TOOL = "calc_gsm8k_reward"
RIGHT = [calls(TOOL, json.dumps({"answer": "72"})), "So it is #### 72"]
WRONG = [calls(TOOL, json.dumps({"answer": "72"})), "No, it is #### 71"]
"""The tool has seen the right answer, the last word is another."""


@pytest.fixture
def gsm8k(tmp_path: Path) -> tuple[list[str], Row]:
    raw: dict[str, Any] = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What is 70 + 2?"}],
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": "72"}}}},
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(raw))
    row = Row("r:0", raw["prompt"], "openai/gsm8k", reward_model=raw["reward_model"], extra_info=raw["extra_info"])
    tool_config = f"rollout.multi_turn.tool_config_path={FILES / 'gsm8k_tool_config.yaml'}"
    return [f"data.train_files={tmp_path / 'rows.jsonl'}", tool_config, "rollout.multi_turn.enable=true"], row


async def play(config: Config, row: Row, *conversations: list[str]) -> list[Trajectory]:
    """The conversations as trajectories of a row, with the run's own tools and scorer."""
    multi_turn, sandbox = config.rollout.multi_turn, Sandbox()
    length, side = multi_turn.max_tool_response_length, multi_turn.tool_response_truncate_side
    tools = load_tools(
        multi_turn.tool_config_path, None, max_response=length, unit="characters", side=side, sandbox=sandbox
    )
    env, _ = environment(lambda key, turn: conversations[int(key[-1])][turn] + END, tools=tools)
    judge = scorer(config, tokenizer(), sandbox)
    scheduler = Scheduler(
        env=env, loop_for=lambda _: ToolAgent, scorer=judge, max_concurrent=8, timeout=60.0, retries=0
    )
    done = await scheduler.run([row], n=len(conversations), sampling=Sampling(256, seed=1), tag="1")
    await tools.close()
    await sandbox.close()
    return done


@pytest.mark.prevents("a right answer scores 2, because the reward function and a tool both score it")
@pytest.mark.parametrize("version", ["0.5", "0.7", "0.9"])
async def test_under_verls_settings(
    version: str, gsm8k: tuple[list[str], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, version)
    overrides, row = gsm8k
    config = compose(overrides, config_name="gsm8k_multiturn_grpo", config_dir=str(FILES), checks=())
    done = await play(config, row, RIGHT, WRONG)
    assert [t.tool_rewards for t in done] == [{TOOL: 1.0}, {TOOL: 1.0}]
    assert [t.reward for t in done] == [1.0, 0.0]


async def test_under_agentrls_own(gsm8k: tuple[list[str], Row]) -> None:
    overrides, row = gsm8k
    done = await play(compose(overrides, checks=()), row, RIGHT, WRONG)
    assert [t.reward for t in done] == [1.0, 0.0]
    added = await play(compose([*overrides, "reward.tool_weight=1"], checks=()), row, RIGHT, WRONG)
    assert [t.reward for t in added] == [2.0, 1.0]


def test_a_run_says_what_it_leaves_out(gsm8k: tuple[list[str], Row], caplog: pytest.LogCaptureFixture) -> None:
    overrides, _ = gsm8k
    config, sandbox = compose(overrides, checks=()), Sandbox()
    path = config.rollout.multi_turn.tool_config_path
    tools = load_tools(path, None, max_response=256, unit="characters", side="middle", sandbox=sandbox)
    env: Any = SimpleNamespace(tools=tools, interactions=load_interactions(None))
    with caplog.at_level(logging.WARNING):
        check_scores(env, scorer(config, tokenizer(), sandbox))
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("the reward function alone gives the reward: ")
    assert said.endswith(f"calc_reward of {TOOL} is reported and not added; reward.tool_weight=1 adds it")
    caplog.clear()
    check_scores(env, scorer(compose([*overrides, "reward.tool_weight=0"], checks=()), tokenizer(), sandbox))
    assert not caplog.records
