"""Keys of verl's that reach into training: each does what it says, on the tiny model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core import remote_files as remote
from agentrl.core.errors import UserError
from agentrl.data import load_dataset
from agentrl.rewards.scorer import length_penalty
from agentrl.rollout.building import scorer
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.merge import merge
from agentrl.training.learner import Learner
from agentrl.training.model.head.chunked import _kernels, _logits_gradient, _row_statistics
from agentrl.training.roles import making as roles
from tests.training.tiny import random_batch

pytestmark = pytest.mark.integration

LENGTHS = [7, 3, 12, 4, 9, 6]
Made = Callable[..., Config]


@pytest.fixture
def config(overrides: list[str], tmp_path: Path) -> Made:
    """The tiny run's settings, with more."""

    def made(*more: str) -> Config:
        return compose([*overrides[1:], f"trainer.default_local_dir={tmp_path}", *more], config_name="tiny")

    return made


def ready(config: Config) -> Learner:
    learner = Learner(config)
    learner.prepare(10)
    return learner


def passes(learner: Learner, work: Callable[[], Any]) -> int:
    """How often the policy runs forward."""
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1

    backbone = learner.model.base.base_model
    with backbone.register_forward_hook(note):
        work()
    return count


def test_the_engines_log_probs_may_stand_in(config: Made) -> None:
    learner = ready(config("algorithm.rollout_correction.bypass_mode=true"))
    batch = random_batch(LENGTHS)
    annotated: list[Any] = []
    assert passes(learner, lambda: annotated.append(learner.compute_logprobs(batch))) == 0
    assert torch.equal(annotated[0].old_logprobs, batch.rollout_logprobs)
    rejecting = "algorithm.rollout_correction.rollout_rs=token"
    learner = ready(config("algorithm.rollout_correction.bypass_mode=true", rejecting))
    assert learner.actor.rollout_correction.rollout_rs == "token"


@pytest.mark.prevents(
    "with top-p and top-k the engine renormalises its log-probs, the trainer does not, and gradients shrink"
)
def test_log_probs_of_a_cut_distribution_correct_nothing(config: Made) -> None:
    """They are higher by what was cut: taken for the policy's own, they would shrink every gradient."""
    correction = ["algorithm.rollout_correction.rollout_is=token"]
    assert ready(config(*correction)).actor.rollout_correction.rollout_is == "token"
    assert ready(config(*correction, "rollout.top_p=0.9")).actor.rollout_correction.rollout_is is None
    assert ready(config(*correction, "rollout.top_k=20")).actor.rollout_correction.rollout_is is None


@pytest.mark.parametrize("bypassed", ["true", "false"])
def test_the_full_kl_needs_no_estimate(config: Made, bypassed: str) -> None:
    bypass = f"algorithm.rollout_correction.bypass_mode={bypassed}"
    in_reward = ready(config("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full", bypass))
    batch = in_reward.compute_logprobs(random_batch(LENGTHS))
    assert batch.ref_logprobs is None
    assert batch.kl.abs().max() < 1e-5  # the policy is the reference yet
    assert torch.equal(batch.old_logprobs, batch.rollout_logprobs) == (bypassed == "true")
    in_loss = ready(config("actor.use_kl_loss=true", "actor.kl_loss_type=full", "actor.optim.lr=0.01", bypass))
    figures = []
    for _ in range(2):
        batch = in_loss.compute_logprobs(random_batch(LENGTHS))
        assert batch.ref_logprobs is batch.kl is None
        figures.append(in_loss.update(batch)["actor/kl_loss"])
    assert abs(figures[0]) < 1e-5
    assert figures[1] > 1e-4


def test_logits_may_be_held_at_once(config: Made) -> None:
    whole = ready(config("model.use_fused_kernels=false"))
    chunked = ready(config())
    assert not whole.actor.score.linear_head
    assert chunked.actor.score.linear_head
    batch = random_batch(LENGTHS)
    for one, other in zip(whole.actor.logprobs(batch), chunked.actor.logprobs(batch), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_pytorchs_kernels_serve_a_gpu_too() -> None:
    on_gpu = type("OnGpu", (), {"is_cuda": True})()
    assert _kernels(on_gpu, "torch") == (_row_statistics, _logits_gradient)


def test_a_run_without_checkpoints_leaves_a_model_that_loads(config: Made, tmp_path: Path) -> None:
    learner = ready(config("trainer.save_freq=-1"))
    learner.save(tmp_path / "c", 4, {"rows": {"epoch": 1}}, model_only=True)
    saved = latest(tmp_path / "c")
    assert {file.name for file in saved.iterdir() if file.suffix == ".safetensors"} == set()
    with pytest.raises(UserError, match=r"has only the model .* model.path=.*/global_step_4 and another"):
        learner.load(saved)
    assert merge(saved, tmp_path / "merged") == 4
    for place in (saved / "huggingface", tmp_path / "merged"):
        again = ready(config(f"model.path={place}", f"trainer.default_local_dir={tmp_path / 'again'}"))
        assert torch.equal(again.score([5, 6, 7]), learner.score([5, 6, 7]))
    asked = ready(config("trainer.save_freq=-1", "actor.checkpoint.save_contents=[model]"))
    asked.save(tmp_path / "d", 4, {}, model_only=True)
    assert "parameters" in checkpoints.load(latest(tmp_path / "d"))[1]["policy"]


def test_one_key_compiles_all_models(config: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    load = roles.load_on_ranks

    def noting(*args: Any, compiled: bool, **kwargs: Any) -> Any:
        seen.append(compiled)
        return load(*args, compiled=False, **kwargs)

    monkeypatch.setattr(roles, "load_on_ranks", noting)
    ready(config("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "actor.use_torch_compile=true"))
    assert seen == [True, True, True]


def test_files_are_read_from_shared_memory(config: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    ready(config("model.use_shm=true"))
    assert [file.parent.name for file in (tmp_path / "shm").rglob("config.json")] == ["model"]
    data = config("data.use_shm=true").data
    assert (
        load_dataset(data, data.train_files, None)[0].uid == load_dataset(config().data, data.train_files, None)[0].uid
    )
    assert list((tmp_path / "shm").rglob("train.parquet"))


def test_the_limit_that_long_answers_near(config: Made) -> None:
    long = ["reward.overlong_buffer.enable=true", "reward.overlong_buffer.len=8"]
    for overrides, halfway in ((*long, "reward.overlong_buffer.max_resp_len=20"), 16), (long, 20), (long[:1], 22):
        made = scorer(config(*overrides), None, None)
        assert length_penalty(made.overlong_buffer, made.max_response_length, halfway) == -0.5


def test_ranks_wait_for_each_other_so_long(config: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from agentrl.config.schema.fsdp import FsdpConfig
    from agentrl.runtime.ray.rank import Rank
    from agentrl.training.parallel import process_group as parallel

    rank = object.__new__(Rank)
    rank.config, rank.device = config("trainer.nccl_timeout=77"), torch.device("cpu")
    monkeypatch.setattr(parallel, "join_ranks", lambda *_, timeout, **__: timeout.total_seconds())
    assert rank._join_ranks(2, 1, FsdpConfig()) == 77
