"""A run whose engine samples from another policy than the one that is trained warns, stops, and leaves a checkpoint."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import compose
from agentrl.config.checks.ranges import ranges
from agentrl.core.errors import UserError
from agentrl.engines.hf import HFEngine
from agentrl.tracking import read_metrics
from agentrl.train import train
from agentrl.training.update.gap import GapTooLarge

pytestmark = pytest.mark.integration


def run(overrides: list[str], folder: Path, *settings: str) -> list[dict[str, float]]:
    """The steps of a short run."""
    given = [
        *overrides[1:],
        "rollout.n=4",
        "data.max_response_length=8",
        "data.val_files=null",
        "trainer.live=false",
        "trainer.val_before_train=false",
        "trainer.save_freq=-1",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={folder}",
        *settings,
    ]
    train(compose(given, config_name="tiny"))
    return read_metrics(folder / "metrics.jsonl")


def off(monkeypatch: pytest.MonkeyPatch, nats: float) -> None:
    """The engine reports log-probs that are off."""
    generate = HFEngine.generate

    async def shifted(self: HFEngine, *args: Any, **kwargs: Any) -> Any:
        found = await generate(self, *args, **kwargs)
        return replace(found, logprobs=[logprob - nats for logprob in found.logprobs])

    monkeypatch.setattr(HFEngine, "generate", shifted)


@pytest.mark.timeout(300)
def test_a_large_gap_stops_after_a_checkpoint(tmp_path, overrides, monkeypatch):
    off(monkeypatch, 0.3)
    with pytest.raises(GapTooLarge, match=r"step 1: trainer and engine differ by 0\.3 nats a token; .*weight_check"):
        run(overrides, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["global_step_1"]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    steps = run(overrides, tmp_path, "trainer.max_rollout_gap=null")  # goes on where it stopped
    assert len(steps) == 2


@pytest.mark.timeout(300)
def test_half_of_it_warns_once(tmp_path, overrides, monkeypatch, caplog):
    off(monkeypatch, 0.07)
    with caplog.at_level(logging.WARNING):
        steps = run(overrides, tmp_path)
    assert len(steps) == 2
    assert caplog.text.count("trainer and engine differ by 0.07") == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("settings", [("trainer.max_staleness=2",), ("rollout.top_p=0.5",)], ids=["stale", "cut"])
def test_what_is_no_error_stops_nothing(tmp_path, overrides, settings):
    """Tokens of older weights after a steep update; log-probs of a part of the distribution."""
    steps = run(
        overrides, tmp_path, "actor.optim.lr=0.02", "actor.entropy_coeff=1", "trainer.total_training_steps=4", *settings
    )
    assert len(steps) == 4
    assert max(s.get("staleness/gap_mean", s.get("rollout_gap/mean", 0.0)) for s in steps) > 0.1


def test_a_limit_of_zero_is_refused():
    with pytest.raises(UserError, match=r"trainer.max_rollout_gap=0.0: .* null"):
        compose(["trainer.max_rollout_gap=0"], checks=(ranges,))
