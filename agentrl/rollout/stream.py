"""The stream of training rows: admitted in the loader's order, out again in that order once they are trained on.

A version of the policy is the number of its updates: step s trains version s - 1. B is `data.train_batch_size`.

Invariants:
- a batch of rows is admitted at step s only while all groups that are begun and not yet trained on number at most
  (bound + 1) * B with it, and batches at most `window.size`. Each step trains on the B oldest groups, so the last one
  is trained on at step s + bound at the latest, by version s + bound - 1. Its first token has version s - 1 or later:
  no token is older than `bound`;
- no row that was admitted is dropped for its age, and a group stays whole;
- the rows of a step depend on the loader alone, never on timing: a quick group does not overtake a slow one, so fast
  answers do not crowd out slow ones;
- a checkpoint of step s has every row that is admitted and not trained on by step s, with the trajectories that are
  finished: each row is trained on once. Trajectories that were under way start over. A resumed run admits these rows
  again, before the loader's and under the same conditions, so its own bound holds, and no key is given twice.

Order costs no speed. With all places in use, each version admits as many groups as a step trains on, and at each step
one batch of groups has reached the bound: in any other order the trainer would wait for the same groups. A slow
trajectory delays a step only when it takes longer than bound + 1 steps.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from agentrl.core.grouping import grouped
from agentrl.core.loop_thread import LoopFuture
from agentrl.data import Loader
from agentrl.rollout.window import MIN_BATCHES, StalenessWindow
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

RolloutFuture = LoopFuture[list[Trajectory]]
"""Trajectories that are being made, group by group."""


@dataclass(eq=False)
class AdmittedBatch:
    """Rows that were admitted together."""

    number: int
    """Position in the order of admission; with bound 0 all batches of a step have one number. Without filters it is the
    step that trains on the batch."""
    places: list[int]
    """Index of each row in the loader's rows."""
    rows: list[Row]
    finished: dict[int, Trajectory] = field(default_factory=dict)
    """By index in the batch, group by group."""
    future: RolloutFuture | None = None
    """None: not begun in this process, or made when the step takes it."""
    returned: bool = False
    """Whether an earlier step gave these groups back."""

    def restart(self) -> None:
        """Begin again with what failed, if the batch is done."""
        if self.future is not None and self.future.done():
            self.future, self.finished = None, self._sound()

    def state_dict(self) -> dict[str, Any]:
        """Plain data, but for the trajectories that are finished."""
        found = {"number": self.number, "places": self.places, "returned": self.returned}
        return found | {"finished": self._sound()}

    def _sound(self) -> dict[int, Trajectory]:
        """Without infrastructure failures, which a later start may not meet."""
        return {i: t for i, t in dict(self.finished).items() if t.outcome is not Outcome.INFRA_ERROR}


Begin = Callable[[AdmittedBatch], RolloutFuture]
"""Begins all trajectories of a batch that are not `finished`."""


class Stream:
    """Admits the rows of `loader` and gives them out in order."""

    def __init__(self, loader: Loader, *, bound: int, batch_size: int, n: int, last_step: int) -> None:
        """`bound`: `trainer.max_staleness`; `batch_size`: groups that a step trains on; `n`: trajectories of a group;
        `last_step`: nothing is admitted that no step up to this one could train on."""
        self.loader, self.bound, self.batch_size, self.n, self.last_step = loader, bound, batch_size, n, last_step
        self.window = StalenessWindow(bound + 1, loader.batch_size * n)
        self._queue = deque[AdmittedBatch]()
        self._restored = deque[AdmittedBatch]()
        """From a checkpoint: admitted before the loader's next rows."""
        self._taken: list[AdmittedBatch] = []
        self._step = self._numbered = 0
        self._before: tuple[dict[str, Any], list[AdmittedBatch]] = {}, []

    def take(self, step: int, begin: Begin | None, kept: int = 0) -> AdmittedBatch:
        """Admit rows as far as the bound allows, and remove the oldest batch, whose trajectories the caller waits for.

        `begin`: begins each batch that is admitted; None: the caller makes them. `kept`: groups that `step` has already
        taken and will train on.
        """
        if step != self._step:
            self._step, self._taken = step, []
            self._before = self.loader.state_dict(), [*self._queue, *self._restored]
            self._numbered = self._numbered if self.bound else max(self._numbered + 1, step)
        for batch in self._admitted(step, kept):
            if begin is not None and batch.future is None:
                batch.future = begin(batch)
        self._taken.append(self._queue.popleft())
        return self._taken[-1]

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Give the loader the rewards of the rows that `step` has taken."""
        groups = grouped((t for t in trajectories if t.scored), lambda trajectory: trajectory.row.uid)
        for uid, place in self._places().items():
            self.loader.record(place, [float(t.reward or 0.0) for t in groups.get(uid, ())], step)

    def give_back(self, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Return whole finished groups that the step has no room for: they come first in the next one."""
        places, number = self._places(), self._taken[-1].number
        for group in reversed(groups):
            row, finished = group[0].row, dict(enumerate(group))
            self._queue.appendleft(AdmittedBatch(number, [places[row.uid]], [row], finished, returned=True))

    def _places(self) -> dict[str, int]:
        """By uid, the rows that the present step has taken."""
        return {row.uid: i for batch in self._taken for row, i in zip(batch.rows, batch.places, strict=True)}

    def undo(self) -> None:
        """The present step ended early: the step before has not trained on its rows.

        With bound 0 they are drawn again; otherwise what is finished is kept.
        """
        if self.bound:
            self._queue = deque([*self._taken, *(b for b in self._queue if b.future is not None)])
            for batch in self._queue:
                batch.restart()
        else:
            self.loader.load_state_dict(self._before[0])
            self._queue, self._restored = deque(), deque(self._before[1])
            self._numbered -= 1
        self._step, self._taken = 0, []

    def waiting(self) -> tuple[int, int]:
        """(groups that are finished and wait for a step, groups that are under way)."""
        counts = (Counter(i // self.n for i in list(batch.finished)) for batch in self._queue)
        finished = sum(count == self.n for groups in counts for count in groups.values())
        return finished, self._queued - finished

    def spare(self) -> bool:
        """Whether the batch after the one that was taken is finished."""
        following = next((batch.future for batch in self._queue if not batch.returned), None)
        return following is not None and following.done()

    def state_dict(self) -> dict[str, Any]:
        """The loader's position and the rows that are admitted and not trained on, for an exact resume: plain data by
        `saved_groups`."""
        queue = [batch.state_dict() for batch in (*self._queue, *self._restored)]
        state = {"queue": queue, "bound": self.bound, "numbered": self._numbered, "n": self.n}
        return self.loader.state_dict() | state | {"window": self.window.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at `state`. With a smaller bound than before, finished trajectories may be too old, and with another
        `n` groups would have several sizes: all start over.

        Raises UserError if the data has changed since.
        """
        self.loader.load_state_dict(state)
        valid = self.bound >= state.get("bound", 0) and self.n == state.get("n", self.n)
        queue = state.get("queue", ())
        self._restored = deque(chain.from_iterable(self._batches(saved, valid) for saved in queue))
        self._numbered = state.get("numbered", 0)
        self.window = StalenessWindow(self.bound + 1, self.loader.batch_size * self.n, state.get("window", MIN_BATCHES))

    @property
    def _queued(self) -> int:
        return sum(len(batch.places) for batch in self._queue)

    def _admitted(self, step: int, kept: int) -> Iterator[AdmittedBatch]:
        """Every batch that is admitted, old and new."""
        yield from list(self._queue)
        while self._has_room(step, kept):
            self._queue.append(self._restored.popleft() if self._restored else self._drawn(step))
            yield self._queue[-1]

    def _drawn(self, step: int) -> AdmittedBatch:
        """The loader's next batch."""
        self._numbered = max(self._numbered + 1, step) if self.bound else self._numbered
        places = self.loader.next_indices()
        return AdmittedBatch(self._numbered, places, [self.loader.rows[i] for i in places])

    def _has_room(self, step: int, kept: int) -> bool:
        """Whether another batch may be admitted. Nothing is admitted ahead that no step would train on."""
        ahead = min(self.bound, self.last_step - step) if self._queue else self.bound
        more = len(self._restored[0].places) if self._restored else self.loader.batch_size
        fits = kept + self._queued + more <= (ahead + 1) * self.batch_size
        wanted = sum(not batch.returned for batch in self._queue) < self.window.size
        return (fits and wanted) or not (self.bound or self._queue)

    def _batches(self, saved: dict[str, Any], valid: bool) -> Iterator[AdmittedBatch]:
        """A saved batch, in parts no larger than a batch is now."""
        kept, size = saved["finished"] if valid else {}, self.loader.batch_size
        for start in range(0, len(saved["places"]), size):
            places, first = saved["places"][start : start + size], start * self.n
            rows = [self.loader.rows[place] for place in places]
            finished = {i: kept[first + i] for i in range(len(rows) * self.n) if first + i in kept}
            for i, trajectory in finished.items():
                trajectory.row = rows[i // self.n]
            yield AdmittedBatch(saved["number"], places, rows, finished, returned=saved.get("returned", False))
