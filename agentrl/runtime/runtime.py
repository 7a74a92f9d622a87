"""The place where the work of a run happens: this process (`LocalRuntime`) or Ray workers (`RayRuntime`).

`agentrl.train` speaks to this protocol only, so that the algorithm reads the same wherever it runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.rollout.workers import RolloutWorkers
from agentrl.tracking.run_tracker import Metrics
from agentrl.training import Batch
from agentrl.trajectory.row import Row


class Runtime(RolloutWorkers, Protocol):
    """One policy, its engine, and the tools around it."""

    tokenizer: Any
    """The policy's."""

    def prompt_length(self, row: Row) -> int:
        """Tokens of a row's first prompt, tools included."""

    def prepare(self, total_steps: int) -> None:
        """Make ready to train for `total_steps` steps in all."""

    def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with what its update needs: log-probs before the step, those of the reference, values.

        Each only where the settings ask for it. Scores that are still out come in meanwhile.
        """

    def update(self, batch: Batch) -> Metrics:
        """Train on the batch, which has its advantages."""

    def publish_weights(self, version: int) -> None:
        """Give the engine the current weights as `version`."""

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
