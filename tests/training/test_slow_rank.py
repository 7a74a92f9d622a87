"""A rank that computes slower than the others is named, once."""

import logging

import pytest

from agentrl.training.parallel.ranks import Ranks
from agentrl.training.perf.slow_rank import SlowRank


class Four(Ranks):
    """Four ranks, of which the third needs as long as it is told."""

    third = 1.0

    def merge(self, values: dict[str, float], *, background: bool = False) -> dict[str, float]:
        (name, own), *_ = values.items()
        return {name: own, "rank 1 on b": 1.1, "rank 2 on c": type(self).third, "rank 3 on d": 1.0}


def test_a_slow_rank_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    found, ratios = SlowRank(Four(world=4)), []
    for third in (2.0, 2.0, 1.0, 2.0, 2.0):
        monkeypatch.setattr(Four, "third", third)
        ratios.append(found.metrics(1.0)["perf/slowest_rank"])
    assert ratios == [2.0, 2.0, 1.1, 2.0, 2.0]
    assert not caplog.records  # not three steps in a row
    for _ in range(4):
        found.metrics(1.0)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "rank 2 on c computes 2.0 times slower than the others, which wait for it"
    ]


def test_of_two_ranks_the_slower_one_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Ranks, "merge", lambda self, values: values | {"rank 1 on b": 0.5})
    found = SlowRank(Ranks(world=2))
    for _ in range(3):
        found.metrics(1.0)
    assert "rank 0 on" in caplog.text
    assert "2.0 times slower" in caplog.text
