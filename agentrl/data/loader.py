"""Batches of rows, epoch after epoch, resumable at any point.

Invariants: the order of an epoch follows from (seed, epoch) alone, and where a sampler ranks rows by their scores, a
batch has the first of those that no other batch is under way with; a loader that takes over another's state gives
exactly the batches that the other would have given next, at the last batch of an epoch too.
"""

from collections.abc import Sequence
from typing import Any

from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError, plural
from agentrl.core.points import ROW_SAMPLERS
from agentrl.data.samplers import SAMPLER_KEY, RowScore, epoch_order
from agentrl.trajectory.row import Row


def check_batch(rows: int, batch_size: int) -> None:
    """Raises UserError if the rows do not fill a batch."""
    if rows < batch_size:
        there = f"{plural(rows, 'row')} there {'is' if rows == 1 else 'are'}"
        raise UserError(
            f"data.train_batch_size={batch_size} is more than the {there}; lower it, and actor.ppo_mini_batch_size"
        )


class Loader:
    """Endless batches: after the last batch of an epoch comes the first of the next.

    With `drop_last`, rows that do not fill a batch wait for another epoch's order. Otherwise an epoch has as few
    batches as `batch_size` allows, alike to within one row: a few rows left over would weigh as much as a whole batch.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool = True,
        sampler: str | None = None,
    ) -> None:
        """`sampler`: a name in `ROW_SAMPLERS`, or a path; None: as `shuffle` says. Raises UserError."""
        if batch_size < 1:
            raise UserError(f"a batch of {batch_size} rows holds nothing; set data.train_batch_size to 1 or more")
        if drop_last:
            check_batch(len(rows), batch_size)
        self.rows = rows
        self.batch_size = batch_size
        self.sampler = sampler or ("shuffled" if shuffle else "in_order")
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        """Epoch of the batch given last, from 0."""
        self._position = 0  # rows of this epoch given so far
        self._ranks = "scores" in keywords_of(ROW_SAMPLERS.get(self.sampler, SAMPLER_KEY))
        self.scores: dict[int, RowScore] = {}  # of the rows that a batch has drawn, where the sampler asks for scores
        self._order = self._ordered()

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch."""
        return self._epoch_rows // self.batch_size + (self._epoch_rows % self.batch_size > 0)

    def next_batch(self) -> list[Row]:
        """The next rows; a new epoch starts after the last row."""
        return [self.rows[i] for i in self.next_indices()]

    def next_indices(self) -> list[int]:
        """Indices in `rows` of the next batch."""
        if self._position >= self._epoch_rows:
            self.epoch, self._position = self.epoch + 1, 0
            self._order = self._ordered()
        rows, steps, begin = self._epoch_rows, self.steps_per_epoch, self._position
        size = next(bound for i in range(steps) if (bound := rows * (i + 1) // steps) > begin) - begin
        if self._ranks:
            self._order, begin = self._ordered(), 0
        chosen = self._order[begin : begin + size]
        self._position += size
        for i in chosen if self._ranks else ():
            self.scores[i] = (score := self.scores.get(i, RowScore()))._replace(tries=score.tries + 1, waiting=True)
        return chosen

    def record(self, index: int, rewards: Sequence[float], step: int) -> None:
        """Note that `step` has trained on a row, with the rewards of its trajectories."""
        if self._ranks:
            self.scores[index] = self.scores.get(index, RowScore()).scored(rewards, step)

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader, for an exact resume."""
        state = {"epoch": self.epoch, "position": self._position, "seed": self.seed, "rows": len(self.rows)}
        return state | {"scores": [[index, *score] for index, score in self.scores.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at `state`. Raises UserError if the data has changed since."""
        if state["rows"] != len(self.rows):
            raise UserError(
                f"data.train_files has {plural(len(self.rows), 'row')} now, {state['rows']} when the checkpoint was "
                "made; restore them, or start over with trainer.resume_mode=disable"
            )
        self.epoch, self._position, self.seed = state["epoch"], state["position"], state["seed"]
        self.scores = {index: RowScore(*score) for index, *score in state.get("scores", ())}
        self._order = self._ordered()

    @property
    def _epoch_rows(self) -> int:
        rest = len(self.rows) % self.batch_size if self.drop_last else 0
        return len(self.rows) - rest

    def _ordered(self) -> list[int]:
        order = epoch_order(self.sampler, self.rows, seed=self.seed, epoch=self.epoch, scores=self.scores)
        return sorted(order, key=lambda i: i in self.scores and self.scores[i].waiting) if self._ranks else order
