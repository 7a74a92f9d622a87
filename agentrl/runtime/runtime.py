"""The protocol that `agentrl.train` uses: the work runs in this process (`LocalRuntime`) or on Ray (`RayRuntime`).

The training loop is the same for both.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.rollout.workers import RolloutWorkers
from agentrl.tracking.run_tracker import Metrics
from agentrl.tracking.start_times import StartTimes
from agentrl.training import Batch
from agentrl.trajectory.row import Row


class Runtime(RolloutWorkers, Protocol):
    """One policy with its engine and tools."""

    tokenizer: Any
    """The policy's."""
    start_times: StartTimes
    """Seconds of the start, by cause."""

    @property
    def containers(self) -> Mapping[str, int]:
        """Trajectories with a container in each phase of it, at any time; none where other machines make them."""

    def prompt_length(self, row: Row) -> int:
        """Number of tokens of a row's first prompt, with its tools."""

    def prepare(self, total_steps: int) -> None:
        """Prepare training for `total_steps` steps in total. The engine may still be starting."""

    def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with old log-probs, reference log-probs and values, each only if the settings need it.

        Rewards that are still being computed arrive meanwhile.
        """

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use."""

    def accumulate_early(self, part: Batch) -> None:
        """Compute the gradients of whole groups, with advantages, of the batch that the next `update` trains on."""

    def update(self, batch: Batch) -> Metrics:
        """Train on a batch that has advantages."""

    def publish_weights(self, version: int) -> None:
        """Give the engine the current weights as `version`. The first call waits until the engine has started."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of `step`, with `state`, in `folder`; remove old ones. `model_only`: see `Learner.save`.

        Writing may continue after the return, except for the `last` one.
        """

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Resume from a checkpoint; returns its step and its `state`. Raises UserError."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""

    def close(self) -> None:
        """Stop engine and tools; safe to call twice."""
