"""A real server samples beside those that train: the run learns, and its ledgers' versions are the server's own."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.engines.servers.installation import find_python
from agentrl.http.client import Http
from agentrl.tasks.models import tiny

Answers = set[tuple[int, int]]
"""(tokens, version) of the server's answers that end alike."""
STEPS, BOUND = 12, 2
FIRST = 200
"""Half of the vocabulary: the reward is the share of an answer's tokens in it."""


def score(data_source: str, solution_str: str, ground_truth: str, trajectory: agentrl.Trajectory) -> float:
    (ledger,) = trajectory.ledgers
    answer = ledger.ids[ledger.prompt_length :]
    return sum(token < FIRST for token in answer) / max(len(answer), 1)


async def slowly(data_source: str, solution_str: str, ground_truth: str, trajectory: agentrl.Trajectory) -> float:
    """The answers to one row take longer than all others."""
    await asyncio.sleep(2.0 * ("What is 0 " in str(trajectory.row.prompt)))
    return score(data_source, solution_str, ground_truth, trajectory)


def settings(folder: Path) -> dict[str, Any]:
    """Two ranks, and a server in a place of its own."""
    (folder / "texts.txt").write_text("What is 2 + 3? The answer is 5.\n" * 50)
    shape = tiny.TinyShape(vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    tiny.prepare(folder / "model", [folder / "texts.txt"], shape=shape)
    return {
        "model.path": folder / "model",
        "data": {"train_batch_size": 4, "max_prompt_length": 128, "max_response_length": 24},
        "actor": {"ppo_mini_batch_size": 4, "optim.lr": 5e-3},
        "rollout": {"n": 8, "name": "sglang", "nnodes": 1, "n_gpus_per_node": 1, "start_timeout": 600},
        "trainer": {"device": "cpu", "n_gpus_per_node": 2, "total_training_steps": STEPS, "max_staleness": BOUND},
        "trainer.default_local_dir": folder / "run",
        "ray_init": {"address": "local", "num_cpus": 4},  # more than the machine has: they are mostly idle
    }


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_python("sglang", "sglang") is None, reason="`agentrl engine install sglang --cpu` comes first")
def test_versions_are_what_the_server_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post, drawn = Http.post, defaultdict[tuple[int, ...], Answers](set)

    async def post_and_note(self: Http, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Any:
        answer = await post(self, path, body, timeout=timeout)
        if path == "/generate":
            meta = answer["meta_info"]
            tokens = [entry[1] for entry in meta["output_token_logprobs"] or []]
            drawn[*body["input_ids"], *tokens] |= {(len(tokens), int(meta["weight_version"]))} if tokens else set()
        return answer

    monkeypatch.setattr(Http, "post", post_and_note)
    rows = [{"prompt": f"What is {n} + 1?"} for n in range(8)]
    with agentrl.training(settings(tmp_path), rows=rows, reward=score) as run:
        steps = list(run)
    for trajectory in (t for step in steps for t in step.trajectories):
        (ledger,) = trajectory.ledgers
        versions = tuple(ledger.versions[ledger.prompt_length :])
        assert versions in said(drawn, tuple(ledger.ids), ledger.prompt_length)
    ages = [step.metrics.get("staleness/max", 0) for step in steps]
    assert 0 < max(ages) <= BOUND
    rewards = [step.metrics["rollout/reward_mean"] for step in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards


@pytest.mark.engine
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_python("sglang", "sglang") is None, reason="`agentrl engine install sglang --cpu` comes first")
def test_a_run_learns_by_updates_that_begin_early(tmp_path: Path) -> None:
    """One process beside a server that samples on."""
    alone = settings(tmp_path)
    alone["rollout"] |= {"nnodes": 0}
    alone["trainer"] |= {"n_gpus_per_node": 1}
    rows = [{"prompt": f"What is {n} + 1?"} for n in range(8)]
    with agentrl.training(alone, rows=rows, reward=slowly) as run:
        learned_early([step.metrics for step in run])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_beside_an_engine_of_their_own_do_so_on_ray(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("ray")
    one = settings(tmp_path)
    one["rollout"] |= {"name": "hf"}
    one["trainer"] |= {"n_gpus_per_node": ranks}
    rows = [{"prompt": f"What is {n} + 1?"} for n in range(8)]
    with agentrl.training(one, rows=rows, reward=slowly) as run:
        learned_early([step.metrics for step in run])


def learned_early(steps: list[dict[str, float]]) -> None:
    """A run whose reward rises, with updates that began before their batch was complete."""
    assert max(step["perf/early_share"] for step in steps) >= 0.5  # of four rows one is slow in every second step
    assert all(step["rollout/ledger_violations"] == 0 for step in steps)
    assert all(step.get("rollout_gap/mean", 0.0) < 1e-3 for step in steps)
    rewards = [step["rollout/reward_mean"] for step in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards


def said(drawn: Mapping[tuple[int, ...], Answers], ids: tuple[int, ...], prompt: int) -> set[tuple[int, ...]]:
    """The version of each token after the prompt, by the answers that drew them: a short one may be drawn twice."""
    if len(ids) == prompt:
        return {()}
    ways = drawn[ids]
    return {(*start, *[v] * n) for n, v in ways for start in said(drawn, ids[: len(ids) - n], prompt)}
