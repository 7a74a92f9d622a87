"""What train.py asks of the place where the work happens: this process (`LocalRuntime`), later Ray workers.

train.py speaks to this protocol only, so that the algorithm reads the same wherever it runs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.data import Row
from agentrl.rollout.trajectory import Trajectory
from agentrl.training import Batch

Metrics = dict[str, float]
OnDone = Callable[[Trajectory], None]


class Runtime(Protocol):
    """One policy, its engine, and the tools around it."""

    tokenizer: Any
    """The policy's."""

    def prompt_length(self, row: Row) -> int:
        """Tokens of a row's first prompt, tools included."""

    def prepare(self, total_steps: int) -> None:
        """Make ready to train for `total_steps` steps in all."""

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        """`rollout.n` trajectories a row, group by group. Raises InfraError when all of them failed.

        They are scored; without `scored`, they are when `annotate` returns.
        """

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """One scored trajectory a row, at temperature 0."""

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """The same with `rollout.val_kwargs`."""

    def annotate(self, batch: Batch) -> Batch:
        """The batch with the log-probs that its update will need: before the step, of the reference, or neither.

        Scores that are still out are taken meanwhile.
        """

    def update(self, batch: Batch) -> Metrics:
        """Train on the batch, which has its advantages."""

    def sync(self, version: int) -> None:
        """Give the engine the current weights under the name `version`."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool) -> None:
        """Write all that a restart needs, `state` with it, as the checkpoint of `step` in `folder`; old ones go.

        It may still be on its way when this returns, but for the `last` one.
        """

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Go on from a checkpoint: its step, and the `state` it was given. Raises UserError."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""

    def close(self) -> None:
        """Stop engine and tools; safe to call twice."""
