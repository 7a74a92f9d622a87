"""Runs whose rollouts continue while the policy trains: `trainer.max_staleness` above 0."""

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import pytest
import torch

import agentrl
from agentrl.core.errors import UserError
from agentrl.runtime import local
from agentrl.runtime.local import LocalRuntime
from agentrl.tracking import load_trajectories
from agentrl.training import Batch
from tests.warm import Process

pytestmark = pytest.mark.integration

Settings = dict[str, Any]
Rows = list[dict[str, Any]]
STEPS = 6


deadly: list[int] = []
"""Not empty: the process dies when an answer is scored."""


async def score(data_source: str, solution_str: str, ground_truth: str) -> float:
    if deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(len(solution_str) % 4 / 100)
    return float(len(solution_str) % 3)


def score_all(
    data_sources: list[str], solution_strs: list[str], ground_truths: list[str], extra_infos: Any = None
) -> list[float]:
    return [len(solution) % 3 + len(solution_strs) / 100 for solution in solution_strs]


def user(messages: list[dict[str, Any]]) -> tuple[bool, str]:
    return len(messages) > 3, "Again?"


def ahead(settings: Settings, bound: int = 2, **more: Any) -> Settings:
    trainer = {**settings["trainer"], "max_staleness": bound, "total_training_steps": STEPS, "save_freq": 1}
    return {**settings, **more, "trainer": trainer | more.pop("trainer", {})}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.max_num_gen_batches": 2},
        {"algorithm.adv_estimator": "remax", "algorithm.use_pf_ppo": True},
        {"algorithm.adv_estimator": "gae", "reward.reward_manager.name": "batch", "rollout.partial_rollout": False},
        {"rollout.multi_turn.enable": True, "data.max_response_length": 60, "actor.use_kl_loss": True},
        {
            "reward.launch_reward_fn_async": True,
            "actor.ppo_mini_batch_size": 1,
            "rollout.max_concurrent_trajectories": 3,
        },
        {"model.lora_rank": 2, "algorithm.rollout_correction.rollout_rs": "token", "engine": "fallback"},
    ],
)
def test_a_run_ahead(settings: Settings, rows: Rows, more: Settings) -> None:
    if more.pop("engine", None):
        more["rollout.engine_kwargs"] = {"hf": {"fallback": True}}
    settings = ahead(settings, **more, **{"trainer.test_freq": 2})
    parts = {
        "reward": score_all if "reward.reward_manager.name" in more else score,
        "interactions": [user] if "rollout.multi_turn.enable" in more else None,
    }
    with agentrl.training(settings, rows=rows, validation_rows=rows[:1], **parts) as run:
        steps = list(run)
    assert [step.number for step in steps] == list(range(1, STEPS + 1))
    trained = Counter(t.key for step in steps for t in step.trajectories)
    assert set(trained.values()) == {1}
    assert max(step.metrics.get("staleness/max", 0) for step in steps) <= 2
    assert any("perf/engine_idle_share" in step.metrics for step in steps)
    assert not any("time/baseline" in step.metrics for step in steps)  # greedy answers are sampled with their row
    for dump in (settings["trainer"]["default_local_dir"] / "validation").glob("*.jsonl"):
        samples = [sample for record in load_trajectories(dump) for sample in record["samples"]]
        versions = {segment["version"] for sample in samples for segment in sample["segments"] if segment["mask"]}
        assert versions == {int(dump.stem)}
    if "reward.reward_manager.name" in more:  # each batch of rows in a call of its own
        assert {round(t.reward % 1, 2) for step in steps for t in step.trajectories} == {0.04}
    if "rollout.partial_rollout" in more:  # one turn, one version
        assert all(step.metrics["staleness/mixed"] == 0 for step in steps)


@pytest.mark.parametrize("bounds", [(2, 2, 2, 2), (3, 3, 1, 0)])
def test_a_run_that_ends_after_each_step_keeps_its_keys_and_its_bound(
    settings: Settings, rows: Rows, bounds: tuple[int, ...]
) -> None:
    trained, filtered = Counter[str](), {"algorithm.filter_groups.enable": True, "data.gen_batch_size": 2}
    for number, bound in enumerate(bounds, start=1):
        with agentrl.training(ahead(settings, bound, **filtered), rows=rows, reward=score) as run:
            step = next(iter(run))
        assert step.number == number
        trained.update(t.key for t in step.trajectories)
        assert step.metrics.get("staleness/max", 0) <= bound
    assert set(trained.values()) == {1}


class BesideAServer(LocalRuntime):
    """A runtime whose engine takes turns with the trainer, though the trainer works as it would beside a server."""

    def can_accumulate_early(self) -> bool:
        return self.learner.can_accumulate_early()

    def accumulate_early(self, part: Batch) -> None:
        assert self.async_sampling is not None
        self.async_sampling.pause()
        super().accumulate_early(part)
        self.async_sampling.resume()

    def update(self, batch: Batch) -> dict[str, float]:
        if self.learner.reference is not None:
            torch.testing.assert_close(batch.ref_logprobs, self.learner.reference.logprobs(batch))
        return super().update(batch)


@pytest.mark.parametrize(("estimator", "kl"), [("grpo", False), ("rloo", True), ("reinforce_plus_plus", False)])
def test_an_update_begins_with_the_groups_that_are_finished(
    settings: Settings, rows: Rows, monkeypatch: pytest.MonkeyPatch, estimator: str, kl: bool
) -> None:
    async def slow(data_source: str, solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(0.8 * (ground_truth == "1"))
        return float(len(solution_str) % 3)

    monkeypatch.setattr(local, "LocalRuntime", BesideAServer)
    settings = ahead(settings, bound=1, **{"algorithm.adv_estimator": estimator, "actor.use_kl_loss": kl})
    with agentrl.training(settings, rows=rows, reward=slow) as run:
        steps = list(run)
    assert set(Counter(t.key for step in steps for t in step.trajectories).values()) == {1}
    shares = [step.metrics.get("perf/early_share") for step in steps]
    assert all(step.metrics["actor/optimizer_steps"] <= 1 for step in steps)
    if estimator != "reinforce_plus_plus":
        assert all(share is not None and 0 <= share < 1 for share in shares), shares
        assert max(filter(None, shares)) > 0.2
    else:  # advantages depend on the whole batch
        assert not any(shares)


def test_old_tokens_are_weighed_by_the_policy_at_the_steps_start(settings: Settings, rows: Rows) -> None:
    """With one optimizer step, the trainer's log-probs in the loss are those of the policy before the step."""
    settings = ahead(settings, **{"actor.optim.lr": 0.05, "algorithm.adv_estimator": "reinforce_plus_plus"})
    with agentrl.training(settings, rows=rows, reward=score) as run:
        steps = [step.metrics for step in run]
    stale = [m for m in steps if m.get("staleness/mean", 0) > 0]
    assert stale
    assert all(m["staleness/gap_mean"] > 1e-4 for m in stale)  # versions differ, and the weights say so
    assert all(m.get("rollout_gap/mean", 0.0) < 1e-4 for m in steps)  # engine and trainer compute the same
    assert "rollout_gap/mean" in steps[0]
    assert any(abs(m["rollout_is/mean"] - 1) > 1e-4 for m in stale)


def test_a_mistake_in_a_reward_ends_the_run_in_one_line(settings: Settings, rows: Rows) -> None:
    def mistaken(data_source: str, solution_str: str, ground_truth: str) -> float:
        raise UserError("the answer key is missing; add it")

    with agentrl.training(ahead(settings), rows=rows, reward=mistaken) as run, pytest.raises(UserError, match="key is"):
        list(run)


def test_a_stop_while_it_waits_saves_the_queue(settings: Settings, rows: Rows) -> None:
    calls: list[int] = []

    async def slow(data_source: str, solution_str: str, ground_truth: str) -> float:
        calls.append(1)
        if len(calls) == 17:  # of the fifth batch, which begins with the third step
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
        return float(len(calls) % 2)

    run = agentrl.training(ahead(settings), rows=rows, reward=slow)
    with pytest.raises(KeyboardInterrupt, match="is saved; the same command resumes"), run:
        list(run.steps(pauses=False))
    before = len(calls)
    with agentrl.training(ahead(settings), rows=rows, reward=slow) as run:
        list(run)
        assert run.step == STEPS
    assert len(calls) - before <= STEPS * 4 - 12  # two batches are trained on, and a third was finished


def run_until_killed(settings: Settings, rows: Rows) -> None:
    with agentrl.training(ahead(settings), rows=rows, reward=score) as run:
        for step in run:
            if step.number == 2:
                deadly.append(1)


@pytest.mark.prevents("an asynchronous run that is killed loses finished rollouts, or trains on them twice")
def test_a_killed_run_trains_on_every_trajectory_once(settings: Settings, rows: Rows) -> None:
    folder = settings["trainer"]["default_local_dir"]
    process = Process(run_until_killed, settings, rows)
    assert process.wait() == -signal.SIGKILL, process.said()[1]
    with agentrl.training(ahead(settings), rows=rows, reward=score) as run:
        list(run)
        assert len(run.history) == STEPS
    dumps = sorted((folder / "rollouts").glob("*.jsonl"), key=lambda path: int(path.stem))
    keys = [[record["key"] for record in load_trajectories(dump)] for dump in dumps]
    assert len(keys) == STEPS
    assert all(key.partition("/")[0] == str(step) for step, own in enumerate(keys, 1) for key in own)
    assert set(Counter(key for own in keys for key in own).values()) == {1}
