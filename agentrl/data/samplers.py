"""Samplers of rows: the order in which an epoch's rows are trained on (`data.row_sampler`).

A sampler is a function of `rows` that may name `seed` (`data.seed`) and `epoch`, from 0, as keywords. It gives the
rows' numbers, each once: a list that follows from its arguments alone, so that a resumed run draws the same rows.

One that names `scores`, a mapping from a row's number to its `RowScore`, ranks the rows: it is called before each
batch, which takes the first ones. A row that no batch has drawn has no score.
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError, reported_as
from agentrl.core.points import ROW_SAMPLERS, row_sampler
from agentrl.trajectory.row import Row

SAMPLER_KEY = "data.row_sampler"


class RowScore(NamedTuple):
    """A row so far: `tries`, the batches that have drawn it; `waiting`, whether the last one is not trained on yet;
    `rewards`, its trajectories with a reward, and their `mean`; the last `step` that trained on it."""

    tries: int = 0
    waiting: bool = False
    rewards: int = 0
    mean: float = 0.0
    step: int = 0

    def scored(self, rewards: Sequence[float], step: int) -> "RowScore":
        """The score after `step`, which has added `rewards`."""
        number = self.rewards + len(rewards)
        total = math.fsum([self.mean * self.rewards, *rewards])
        return RowScore(self.tries, False, number, total / max(number, 1), step)


@row_sampler("shuffled")
def shuffled(rows: Sequence[Row], *, seed: int, epoch: int) -> list[int]:
    """Another random order each epoch."""
    order = list(range(len(rows)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


@row_sampler("in_order")
def in_order(rows: Sequence[Row]) -> list[int]:
    """The order of the files."""
    return list(range(len(rows)))


def epoch_order(name: str, rows: Sequence[Row], *, seed: int, epoch: int, scores: Mapping[int, RowScore]) -> list[int]:
    """The numbers of `rows` in the order of an epoch. Raises UserError for a sampler that is not there or fails."""
    entry = ROW_SAMPLERS.entry(name, SAMPLER_KEY)
    options = {"seed": seed, "epoch": epoch, "scores": scores}
    given = {option: options[option] for option in keywords_of(entry.value)}
    with reported_as(f"{SAMPLER_KEY}={name}"):
        order = [int(i) for i in entry.value(rows, **given)]
    if sorted(order) != list(range(len(rows))):
        raise UserError(
            f"{SAMPLER_KEY}={name}: it gave {len(order)} numbers; give each number from 0 to {len(rows) - 1} once"
        )
    return order
