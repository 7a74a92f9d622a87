"""Every metric has a sentence, and the page of metrics has all of them."""

from pathlib import Path

import pytest

from agentrl.tracking.fields import FIELDS
from agentrl.tracking.lines import FAULTS, SCORES
from agentrl.tracking.meanings import meaning_of
from agentrl.tracking.metrics import rollout_metrics, validation_metrics
from tests.reference import metrics
from tests.view.conftest import AHEAD, talk

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


SFT = ("train/loss", "train/grad_norm", "train/lr", "train/tokens", "train/skipped_steps", "val/loss")


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == metrics(), "stale: run `make reference`"


def test_every_metric_has_a_sentence():
    group = [talk(2, 0, sample, reward=float(sample), reward_extra={"style": 0.5}) for sample in (0, 1)]
    shown = {name for field in (*SCORES, *FIELDS) for name in field.names} | {name for name, _ in FAULTS}
    names = rollout_metrics(group) | validation_metrics(group) | dict.fromkeys([*shown, *AHEAD, *SFT])
    assert len(names) > 100
    assert [name for name in names if meaning_of(name) is None] == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tools/calculator/ok", "Share of this tool's calls that ended so."),
        ("val/gsm8k/tools/calls", "Tool calls per trajectory."),
        ("val/a/b/success", meaning_of("rollout/success").sentence),
        ("val/loss", "Mean loss of the held-out assistant tokens, in nats."),
        ("staleness/share_3", "Share of tokens that are so many updates old."),
    ],
)
def test_names_with_parts_that_vary(name, sentence):
    assert meaning_of(name).sentence == sentence


def test_an_unknown_metric_has_none():
    assert meaning_of("mine/own") is None
    assert meaning_of("val/mine/own") is None
