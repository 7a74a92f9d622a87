"""Runs from Python: objects in place of files, steps one by one, folders, signals, event loops."""

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.runtime.runtime import Runtime
from agentrl.training.checkpoint.restarts import WorkerDied

Settings = dict[str, Any]
Rows = list[dict[str, Any]]


def score(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(len(solution_str) % 3)


class Adder(agentrl.BaseTool):
    """A tool that keeps its own books."""

    tool_schema = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}  # noqa: RUF012

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, agentrl.ToolResponse]:
        self.config["created"] = self.config.get("created", 0) + 1
        return str(instance_id), agentrl.ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[str, float, dict[str, Any]]:
        return "5", 0.0, {}


def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number.
    """
    return str(2 * number)


def test_a_run_of_objects(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    heard: list[str] = []

    async def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        asked.append((ground_truth, extra_info["level"]))
        return float(len(asked) % 2)

    def user(messages: list[dict[str, Any]]) -> tuple[bool, str]:
        heard.append(messages[-1]["role"])
        return True, ""

    tool = Adder()
    steps: list[agentrl.Step] = []
    result = agentrl.train(
        settings,
        tools=[tool, double],
        interactions=[user],
        reward=reward,
        rows=rows,
        validation_rows=iter(rows[:2]),
        on_step=steps.append,
    )
    assert [step.number for step in steps] == [1, 2]
    assert [entry["step"] for entry in result.history] == [1, 2]
    assert result.initial_validation["step"] == 0
    assert result.initial_validation.keys() >= {"val/reward_mean"}
    assert {(row["answer"], row["level"]) for row in rows} == set(asked)
    assert result.metrics.keys() >= {"rollout/reward_mean", "val/reward_mean", "time/step"}
    assert len(result.trajectories) == 4
    assert [schema["function"]["name"] for schema in result.trajectories[0].schemas] == ["add", "double"]
    assert set(heard) <= {"assistant"}
    assert result.checkpoint == tmp_path / "run/checkpoints/global_step_2"
    assert "<python: Adder, double>" in (tmp_path / "run/config.yaml").read_text()
    ids = result.tokenizer("What is 2 + 3?", return_tensors="pt")
    assert result.model.generate(**ids, max_new_tokens=2).shape[1] > ids["input_ids"].shape[1]


def test_a_second_run_resumes_and_leaves_nothing_behind(settings: Settings, rows: Rows) -> None:
    settings["trainer"]["total_training_steps"] = 1
    agentrl.train(settings, rows=rows, reward=score)
    threads, files = {*threading.enumerate()}, open_files()
    settings["trainer"]["total_training_steps"] = 2
    result = agentrl.train(settings, rows=rows, reward=score)
    assert [entry["step"] for entry in result.history] == [1, 2]
    again = agentrl.train(settings, rows=rows, reward=score)
    assert (again.history, again.checkpoint) == (result.history, result.checkpoint)
    settings["actor.optim.lr"] = 0.05
    with pytest.raises(agentrl.UserError, match=r"has finished, after 2 steps under other settings: actor\.optim\.lr"):
        agentrl.train(settings, rows=rows, reward=score)
    settings["trainer"]["total_training_steps"] = 3
    assert not [thread for thread in threading.enumerate() if not thread.daemon and thread not in threads]
    assert open_files() <= files
    with pytest.raises(agentrl.UserError, match=r"another experiment.*data.train_files: <python: 4 rows"):
        agentrl.train(settings, rows=rows[:3], reward=score)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def test_a_loop_of_ones_own_where_an_event_loop_runs(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    settings["trainer"]["total_training_steps"] = 3
    with agentrl.training(settings, rows=rows, reward=score, validation_rows=rows[:1]) as run:
        assert run.validate()["val/trajectories"] == 1
        for step in run:
            assert len(step.trajectories) == 4
            break
        assert run.checkpoint == tmp_path / "run/checkpoints/global_step_1"
        with pytest.raises(agentrl.UserError, match="in use by another run .this very process"):
            agentrl.train(settings, rows=rows, reward=score)
        assert [step.number for step in run] == [2, 3]
    assert run.result.metrics["step"] == 3
    with pytest.raises(RuntimeError, match="closed"):
        run.validate()


def test_an_error_in_the_loop_saves_the_step(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    def fail() -> None:
        for _ in agentrl.training(settings, rows=rows, reward=score):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert (tmp_path / "run/checkpoints/global_step_1").is_dir()
    assert not (tmp_path / "run/checkpoints/global_step_2").exists()


async def test_an_interrupt_is_heard_in_a_notebook(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    """Ctrl-C while a step samples on the helper thread, beside the running loop."""
    settings["trainer"]["total_training_steps"] = 20
    asked: list[int] = []

    def slow(data_source: str, solution_str: str, ground_truth: str) -> float:
        asked.append(1)
        if len(asked) == 6:  # in the second step
            os.kill(os.getpid(), signal.SIGINT)
        return float(len(asked) % 2)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="step 1 is saved"):
        agentrl.train(settings, rows=rows, reward=slow)
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "run/checkpoints/global_step_1").is_dir()


def test_a_stop_does_not_wait_for_late_scores(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    """Ctrl-C while the log-probs are there, and a judge still thinks."""
    settings["trainer"]["total_training_steps"] = 3
    settings |= {"reward.launch_reward_fn_async": True, "actor.ppo_mini_batch_size": 1}
    asked, scored = list[int](), list[int]()

    async def judge(data_source: str, solution_str: str, ground_truth: str) -> float:
        asked.append(1)
        if len(asked) == 8:  # the last of the second step
            await asyncio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        if len(asked) > 4:
            await asyncio.sleep(60)
        scored.append(1)
        return float(len(asked) % 2)

    with pytest.raises(KeyboardInterrupt, match="step 1 is saved"):
        agentrl.train(settings, rows=rows, reward=judge)
    assert len(scored) == 4
    assert (tmp_path / "run/checkpoints/global_step_1").is_dir()


def test_a_run_that_lost_a_process_continues_by_itself(
    settings: Settings, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[int] = []
    whole = Runtime.update

    def update(observed: Runtime, batch: Any) -> dict[str, float]:
        updates.append(1)
        if len(updates) == 2:
            raise WorkerDied("rank 1 died")
        return whole(observed, batch)

    monkeypatch.setattr(Runtime, "update", update)
    settings["trainer"]["save_freq"] = 1
    steps = [step.number for step in agentrl.training(settings, rows=rows, reward=score)]
    assert steps == [1, 2]
    assert len(updates) == 3


def test_a_run_in_a_thread(settings: Settings, rows: Rows) -> None:
    settings["trainer"]["total_training_steps"] = 1
    results: list[agentrl.Result] = []
    thread = threading.Thread(target=lambda: results.append(agentrl.train(settings, rows=rows, reward=score)))
    thread.start()
    thread.join()
    assert results[0].metrics["step"] == 1


def test_mistakes_are_one_line_before_the_model_loads(settings: Settings, rows: Rows) -> None:
    settings["model.path"] = "/nowhere/model"

    def undocumented(x: int) -> str:
        return str(x)

    for given, message in (
        ({"rows": rows, "reward": lambda answer: 0.0}, "does not fit"),
        ({"rows": [], "reward": score}, "rows is empty"),
        ({"rows": [{"text": "?"}], "reward": score}, "rows:1 has no 'prompt': it has text"),
        ({"rows": rows, "tools": [undocumented], "reward": score}, "undocumented"),
        ({"rows": rows, "tools": Adder, "reward": score}, "pass a list"),
        ({"rows": rows, "reward": score}, "model.path"),
    ):
        with pytest.raises(agentrl.UserError, match=message):
            agentrl.train(settings, **given)  # type: ignore[arg-type]
    with pytest.raises(agentrl.UserError, match=r"did you mean rollout\.n\?"):
        agentrl.train({"rollout.nn": 1})
    with pytest.raises(agentrl.UserError, match="nothing scores"):
        agentrl.train(settings | {"model.path": "org/model"}, rows=rows)


def test_a_local_function_cannot_score_in_other_processes(settings: Settings, rows: Rows) -> None:
    settings["reward.reward_manager.name"] = "prime"
    with pytest.raises(agentrl.UserError, match=r"prime: other processes cannot import reward"):
        agentrl.rollout(settings, rows=rows, reward=local_reward())


def local_reward() -> Any:
    def reward(data_source: str, solution_str: str, ground_truth: str) -> float:
        return 1.0

    return reward


def test_notes_on_settings_are_logged(model: Path, caplog: pytest.LogCaptureFixture, rows: Rows) -> None:
    old = [
        "actor_rollout_ref.rollout.n=2",
        f"model.path={model}",
        "data.train_batch_size=2",
        "actor.ppo_mini_batch_size=2",
    ]
    with caplog.at_level(logging.WARNING):
        run = agentrl.training([*old, "algorithm=rloo"], rows=rows, reward=score)
    assert run.config.rollout.n == 2
    assert run.config.algorithm.adv_estimator == "rloo"
    assert agentrl.training(run.config, preset="unread", rows=rows, reward=score).config.rollout.n == 2


def test_rows_given_twice_are_groups_of_their_own(settings: Settings, tmp_path: Path) -> None:
    settings["data"]["train_batch_size"], settings["trainer"]["total_training_steps"] = 4, 1
    (tmp_path / "half.jsonl").write_text('{"prompt": "say 0"}\n{"prompt": "say 1"}\n')
    row = agentrl.Row("mine", [{"role": "user", "content": "say 0"}])
    for rows in ([tmp_path / "half.jsonl"] * 2, [row, row, agentrl.Row("mine#2", row.prompt), row]):
        made = agentrl.train(settings, rows=rows, reward=lambda **_: 1.0).trajectories
        assert len({trajectory.key for trajectory in made}) == 8
        assert set(Counter(trajectory.row.uid for trajectory in made).values()) == {2}
        settings["trainer"]["default_local_dir"] = tmp_path / "again"


def test_0_and_minus_1_keep_all_checkpoints(settings: Settings, rows: Rows, tmp_path: Path) -> None:
    settings["trainer"] |= {"save_freq": 1, "max_actor_ckpt_to_keep": -1, "max_critic_ckpt_to_keep": 0}
    settings["algorithm.adv_estimator"] = "gae"
    agentrl.train(settings, rows=rows, reward=score)
    assert len(list((tmp_path / "run/checkpoints").glob("global_step_*/critic-00000.safetensors"))) == 2
