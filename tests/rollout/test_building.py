"""Settings that reach what trajectories meet, and the rows of a run."""

import json
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.data.splits import Reader
from agentrl.rollout.building import limits, rollout_context
from tests.chat import realia

PROMPT = [{"role": "user", "content": "What is 1 and 1?"}]


def test_arguments_reach_the_chat_template() -> None:
    tokenizer = realia.tokenizer("qwen")
    tokenizer.chat_template = realia.template("qwen3")

    def opening(*overrides: str) -> str:
        env = rollout_context(compose(overrides, config_name="train", checks=()), tokenizer, None, None)
        return env.chat.decode(env.chat.prompt(PROMPT))

    assert "</think>" not in opening()
    assert opening("data.apply_chat_template_kwargs.enable_thinking=false").endswith("<think>\n\n</think>\n\n")


def test_rows_may_be_a_part_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": PROMPT}) for _ in range(9)))
    files = [f"data.{split}_files={tmp_path / 'rows.jsonl'}" for split in ("train", "val")]
    parts = ["data.train_max_samples=4", "data.val_max_samples=3", "data.filter_overlong_prompts=false"]
    config = compose([*files, *parts, "data.train_batch_size=2"], config_name="train", checks=())
    splits = Reader(config, None, lambda row: 0).splits()
    assert len(splits.train.rows) == 4
    assert splits.train.steps_per_epoch == 2
    assert [len(batch) for one in splits.validation for batch in one.batches] == [3]


@pytest.mark.parametrize("none", ["0", "-1"])
def test_0_and_minus_1_are_no_limit(none: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": PROMPT}) for _ in range(9)))
    keys = ["data.train_max_samples", "data.val_max_samples", "trainer.total_training_steps"]
    keys += ["rollout.multi_turn.max_assistant_turns", "rollout.multi_turn.max_user_turns"]
    files = [f"data.{split}_files={tmp_path / 'rows.jsonl'}" for split in ("train", "val")]
    sizes = ["data.train_batch_size=3", "trainer.total_epochs=2", "data.filter_overlong_prompts=false"]
    config = compose([*files, *sizes, *(f"{key}={none}" for key in keys)], config_name="train", checks=())
    splits = Reader(config, None, lambda row: 0).splits()
    assert (len(splits.train.rows), splits.total_steps, len(splits.validation[0].rows)) == (9, 6, 9)
    found = limits(config)
    assert (found.assistant_turns, found.user_turns) == (None, None)
