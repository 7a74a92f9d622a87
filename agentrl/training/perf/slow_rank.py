"""Find the rank whose GPU computes slower than those of the others: too hot, throttled, or used by another program.

In an update each rank waits for the slowest one in each layer, so all seem equally slow. A product of fixed size, which
waits for nobody else, tells them apart.
"""

import logging
import socket
from collections import Counter
from statistics import median_low

import torch
from torch.utils.benchmark import Timer

from agentrl.training.parallel.ranks import Ranks

SIZE, PRODUCTS = 4096, 16
"""Rows of the matrix, and products whose mean counts."""
SLOW, STEPS = 1.3, 3
"""Seconds over the median from which on a rank is slow, and the steps in a row after which it is named."""

log = logging.getLogger(__name__)


class SlowRank:
    """Compares the ranks once a step, and names a slow one once."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self._steps = ranks, Counter[str]()

    def metrics(self, seconds: float) -> dict[str, float]:
        """`perf/slowest_rank`: seconds of the slowest rank over the median. `seconds`: of this rank. Collective."""
        found = self.ranks.merge({f"rank {self.ranks.rank} on {socket.gethostname()}": seconds})
        usual = median_low(found.values())
        for name, own in found.items():
            named = self._steps[name] >= STEPS
            self._steps[name] = STEPS + 1 if named else self._steps[name] + 1 if own > SLOW * usual else 0
            if self._steps[name] == STEPS and self.ranks.first:
                log.warning("%s computes %.1f times slower than the others, which wait for it", name, own / usual)
        return {"perf/slowest_rank": max(found.values()) / usual}


def product_seconds(device: torch.device) -> float:
    """Seconds of a matrix product on a GPU."""
    matrix = torch.ones(SIZE, SIZE, dtype=torch.bfloat16, device=device)
    return Timer("matrix @ matrix", globals={"matrix": matrix}).timeit(PRODUCTS).mean
