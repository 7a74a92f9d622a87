"""A run on several processes is the run on one: same metrics, same checkpoints, and nothing left when it goes wrong.

One Ray cluster serves all of these tests; each run starts its own workers on it.
"""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import agentrl
from agentrl.config import compose
from agentrl.config.schema import Config, RewardModel, RewardNetwork
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import InfraError, UserError
from agentrl.data import read_rows
from agentrl.http.client import ServerLost
from agentrl.runtime.opening import open_runtime
from agentrl.sft import sft
from agentrl.train import train
from agentrl.training.checkpoint.restarts import WorkerDied
from agentrl.training.sft.contract import SftResult
from tests.e2e.conftest import figures
from tests.e2e.fragile import Fragile
from tests.training.tiny import ledger, trajectory

pytestmark = pytest.mark.integration

ray = pytest.importorskip("ray")

STEPS = 3
# Scores that differ between a tiny model's answers, so that there is something to learn.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, **_):
    return sum(map(ord, solution_str)) % 11 / 10
"""


def score(text: str) -> float:
    """The same in this file."""
    return sum(map(ord, text)) % 11 / 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of this module's own; more CPUs than there are, for they mostly wait."""
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def whole(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The run in one process, done."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "reward.py").write_text(REWARD)
    config = compose(
        [
            *overrides[1:],
            f"reward.custom_reward_function.path={folder / 'reward.py'}",
            "reward.custom_reward_function.name=compute_score",
            f"trainer.total_training_steps={STEPS}",
            f"trainer.default_local_dir={folder / 'run'}",
            "trainer.device=cpu",
            "trainer.logger=[file]",
            "trainer.live=false",
            "trainer.test_freq=-1",
            "data.max_response_length=24",
            "actor.ppo_mini_batch_size=2",  # so log-probs are computed before the update
        ],
        config_name="tiny",
    )
    train(config)
    return config


def changed(config: Config, folder: Path, **trainer: Any) -> Config:
    return replace(config, trainer=replace(config.trainer, default_local_dir=str(folder), **trainer))


def figures_of(config: Config) -> list[dict[str, float]]:
    return figures(Path(config.trainer.default_local_dir))


@pytest.mark.timeout(300)
def test_two_ranks_repeat_one_process_and_one_goes_on_from_two(whole: Config, cluster: None, tmp_path: Path) -> None:
    expected = figures_of(whole)
    assert len(expected) == STEPS + 1
    assert expected[1]["actor/grad_norm"] > 0.1
    both = changed(whole, tmp_path, n_gpus_per_node=2, total_training_steps=STEPS - 1)
    both = replace(both, rollout=replace(both.rollout, agent=replace(both.rollout.agent, num_workers=1)))
    rows, held_out = (list(read_rows(files)) for files in (whole.data.train_files, whole.data.val_files))
    # Objects of this process, a function of this test's among them, do what files do.
    result = agentrl.train(
        both, reward=lambda **given: score(given["solution_str"]), rows=rows, validation_rows=held_out
    )
    assert len(result.trajectories) == len({t.key for t in result.trajectories}) == 16
    assert all(t.messages[-1]["content"] and t.ledgers for t in result.trajectories)  # the worker is gone by now
    # The last step of a run is validated: the shorter run's step 2 has more figures than the longer one's.
    for mine, theirs in zip(figures_of(both), expected, strict=False):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    train(changed(whole, tmp_path))  # alone, from the checkpoint of the two
    assert figures_of(both)[-1] == pytest.approx(expected[-1], rel=1e-4, abs=1e-5)


def test_stored_trajectories_are_written_where_their_bodies_are_read(
    cluster: None, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a Ray process that gets references: the bytes on the disk are those that this process writes."""
    from agentrl.runtime.ray.store import RayFunction, RayStore, send_references
    from agentrl.tracking.dumps import writer
    from agentrl.trajectory.outline import Lines
    from agentrl.trajectory.store import stored

    monkeypatch.setattr(writer, "LARGE_TOKENS", 0)
    send_references()
    tokenizer = AutoTokenizer.from_pretrained(task / "model")
    whole = [trajectory(ledger(3, 4, seed=i), sample=i) for i in range(4)]
    outlined = [stored(each, RayStore()) for each in whole]
    whole[1].advantages = outlined[1].advantages = [Lines([0.0, 0.5, 0.0, 0.25], [3, 3, 2, 4])]
    files = []
    for name, made, isolated in (("mine", whole, writer.IsolatedFunction), ("ray", outlined, RayFunction)):
        dumps = writer.DumpWriter(tokenizer.decode, tokenizer, isolated)
        files.append(tmp_path / f"{name}.jsonl")
        dumps.write(files[-1], 1, made)
        dumps.wait()
        dumps.close()
        assert not dumps.failures
        assert dumps._sends
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not any("ledgers" in vars(each) for each in outlined)


def supervised(
    task: Path, folder: Path, stop_at: int = 0, **trainer: Any
) -> tuple[list[list[float]], SftResult | None]:
    """A run on demonstrations: loss, gradient norm and validation loss of each step, and what came of it."""
    settings = {"output_dir": str(folder), "total_training_steps": 3, "save_freq": 1, "test_freq": 1} | trainer
    config = compose(
        [
            f"model.path={task / 'model'}",
            f"model.lora_rank={settings.pop('lora_rank', 0)}",
            f"data.train_files={task / 'data/sft.jsonl'}",
            "data.train_max_samples=13",  # the second batch of an epoch is smaller, and odd
            f"data.val_files={task / 'data/sft.jsonl'}",
            "data.val_max_samples=3",
            "data.train_batch_size=8",
            "optim.lr=1e-3",
            "trainer.device=cpu",
            "trainer.max_token_len_per_gpu=400",
            *(f"trainer.{key}={value}" for key, value in settings.items()),
        ],
        config_name="sft",
        schema=SftConfig,
        checks=(),
    )
    seen = []

    def on_step(step: int, total: int, metrics: dict[str, float]) -> None:
        seen.append([metrics[name] for name in ("loss", "grad_norm", "val_loss")])
        if step == stop_at:
            signal.raise_signal(signal.SIGINT)

    try:
        return seen, sft(config, on_step)
    except KeyboardInterrupt:
        return seen, None


def assert_moved_alike(task: Path, one: SftResult | None, other: SftResult | None) -> None:
    """The updates of two runs as vectors. AdamW gives a gradient that is only rounding a full step of either sign, so
    single weights may differ; a share of the tokens, or of the ranks, that was left out would turn the whole vector.
    """
    begun = load_file(task / "model/model.safetensors")
    moved = []
    for result in (one, other):
        assert result is not None
        found = load_file(result.path / "model.safetensors")
        moved.append(torch.cat([(found[name] - begun[name]).flatten() for name in sorted(found)]))
    assert moved[0].norm() > 0.1
    assert (moved[0] - moved[1]).norm() < 0.02 * moved[0].norm()


@pytest.mark.timeout(300)
def test_supervised_training_on_two_ranks_is_that_of_one_process(task: Path, cluster: None, tmp_path: Path) -> None:
    """Losses to 1e-4, weights to 2% of their way; and one process goes on from two."""
    expected, alone = supervised(task, tmp_path / "alone")
    begun, nothing = supervised(task, tmp_path / "two", n_gpus_per_node=2, stop_at=2)
    assert nothing is None
    rest, resumed = supervised(task, tmp_path / "two")
    assert (len(begun), len(rest)) == (2, 1)
    for mine, theirs in zip(begun + rest, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
    assert_moved_alike(task, resumed, alone)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_supervised_training_of_an_adapter_that_splits_tokens(task: Path, cluster: None, tmp_path: Path) -> None:
    """Sequence parallel; what is written is the base model with the adapter in it."""
    lora = {"lora_rank": 4, "total_training_steps": 2}
    expected, alone = supervised(task, tmp_path / "alone", **lora)
    found, both = supervised(task, tmp_path / "two", n_gpus_per_node=2, ulysses_sequence_parallel_size=2, **lora)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
    assert_moved_alike(task, both, alone)
    assert not (tmp_path / "two/adapter_model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reward_model_in_a_worker_of_its_own(whole: Config, cluster: None, task: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = AutoConfig.from_pretrained(task / "model", num_labels=1)
    AutoModelForSequenceClassification.from_config(shape).save_pretrained(tmp_path / "judge")
    network = RewardNetwork(path=str(tmp_path / "judge"), dtype="float32")

    def judged(folder: Path, pool: bool, **trainer: Any) -> list[dict[str, float]]:
        reward = replace(whole.reward, reward_model=RewardModel(True, model=network, enable_resource_pool=pool))
        config = replace(changed(whole, folder, total_training_steps=1, **trainer), reward=reward)
        train(config)
        return figures_of(config)

    expected = judged(tmp_path / "beside", pool=False)
    assert abs(expected[1]["reward/reward_model"]) > 1e-3
    for mine, theirs in zip(judged(tmp_path / "apart", pool=True, n_gpus_per_node=2), expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_what_is_missing_is_said(whole: Config, cluster: None, tmp_path: Path) -> None:
    asked = changed(whole, tmp_path, n_gpus_per_node=64)
    with pytest.raises(UserError, match="n_gpus_per_node=64 asks for 1 machine with 64 CPUs; .* has 1 with 4 CPUs"):
        open_runtime(asked)


def test_what_goes_wrong_on_a_rank_is_one_line(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.runtime.ray import failures
    from agentrl.runtime.ray.worker_group import WorkerGroup

    monkeypatch.setattr(failures, "GRACE", 3.0)
    kind = ray.remote(num_cpus=0, max_concurrency=8)(Fragile)
    group = WorkerGroup([kind.remote(), kind.remote()], ["rank 0", "rank 1"], [])
    assert group.call("call", "fine") == "fine"
    with pytest.raises(UserError, match="^a.key=1: give 2$"):
        group.call("call", "mistake")
    # Not all have it: a caller that goes on after a UserError would call ranks that wait in a collective.
    for other in ("fine", "stuck"):
        with pytest.raises(InfraError, match="^a.key=1: give 2$"):
            group.each("call", [(other,), ("mistake",)])
    with pytest.raises(ServerLost, match="^gone$"):
        group.each("call", [("fine",), ("server",)])
    with pytest.raises(WorkerDied, match="^gone; the other ranks wait"):
        group.each("call", [("stuck",), ("server",)])
    with pytest.raises(InfraError, match="^rank 1 failed: KeyError: 'no such.*thing'$"):
        group.each("call", [("fine",), ("bug",)])
    with pytest.raises(WorkerDied, match="^rank 1 died"):  # rank 0's own trouble is its consequence
        group.each("call", [("bug",), ("death",)])
    with pytest.raises(WorkerDied):
        group.call("call", "fine")
