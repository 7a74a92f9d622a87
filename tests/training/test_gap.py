"""Figures of the gap over the tokens of several ranks, beside those of all tokens in one place."""

from threading import Barrier, Thread

import pytest
import torch

from agentrl.training.parallel.ranks import Ranks
from agentrl.training.update.gap import gap_metrics, nth_smallest


def test_the_nth_smallest_is_exact():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=generator, dtype=torch.float64).abs() ** 9
    values[:40] = 0.0
    values[40:80] = values[100]
    for n in (1, 40, 41, 2500, 4950, 4999, 5000):
        assert nth_smallest(values, n) == values.kthvalue(n).values.item()


class Together(Ranks):
    """Ranks in threads: `total` adds up what all of them bring."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.brought: list[torch.Tensor] = []
        self.meeting = Barrier(parts)

    def sum_over_ranks(self, tensor):
        self.brought.append(tensor.clone())
        self.meeting.wait()
        tensor.copy_(sum(self.brought))
        if not self.meeting.wait():
            self.brought.clear()
        self.meeting.wait()
        return tensor


def test_ranks_find_what_one_process_finds():
    gap = torch.randn(3001, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parts, found = [gap[:2000], gap[2000:2000], gap[2000:]], []
    ranks = Together(len(parts))
    threads = [Thread(target=lambda own=own: found.append(gap_metrics(own, ranks))) for own in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = gap_metrics(gap)
    assert gap_metrics(gap[:0]) == {}
    assert len(found) == len(parts)
    for metrics in found:
        assert metrics == pytest.approx(alone, rel=1e-12)
        assert metrics["rollout_gap/max"] == alone["rollout_gap/max"] == gap.abs().max().item()
        assert metrics["rollout_gap/p99"] == alone["rollout_gap/p99"]


def test_a_gap_that_is_no_number_shows():
    found = gap_metrics(torch.tensor([0.1, float("nan")], dtype=torch.float64))
    assert all(value != value for name, value in found.items() if name != "rollout_gap/p99")
