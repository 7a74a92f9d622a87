"""verl's trainer parts that plug-in files import, for annotations or for classes that a run here does not use.

They can be derived from, and nothing else: agentrl has its own loop, workers and servers.
"""

from typing import Any, NoReturn

from agentrl.core.errors import UserError


class Unserved:
    """A part of verl's trainer. Raises UserError where an object of it is made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UserError(f"{type(self).__name__} is a part of verl's trainer; agentrl has its own and makes none")

    @classmethod
    def remote(cls, *_: Any, **__: Any) -> NoReturn:
        """Raises UserError."""
        raise UserError(f"{cls.__name__} is a part of verl's trainer; agentrl has its own and makes none")


class AgentLoopManager(Unserved):
    """Starts workers of agent loops."""


class AgentLoopWorker(Unserved):
    """Runs agent loops."""


class RewardLoopManager(Unserved):
    """Starts workers of rewards."""


class RewardLoopWorker(Unserved):
    """Computes rewards."""


class RewardModelManager(Unserved):
    """Starts the servers of a reward model."""


class RolloutReplica(Unserved):
    """A server of the policy."""


class SFTDataset(Unserved):
    """Rows of supervised training."""


class AbstractSampler:
    """Order of the rows: `__init__(data_source, data_config)`, `__iter__`, `__len__`."""

    def __init__(self, data_source: Any, data_config: Any) -> None:
        self.data_source, self.data_config = data_source, data_config


class AbstractCurriculumSampler(AbstractSampler):
    """One that learns from each batch."""

    def update(self, batch: Any) -> None:
        """Read the metrics of a batch."""


async def get_trajectory_info(step: int, index: Any, validate: bool) -> list[dict[str, Any]]:
    """Step, row, number among the row's answers and purpose of each rollout."""
    counts: dict[Any, int] = {}
    told = []
    for row in index:
        counts[row] = counts.get(row, -1) + 1
        told.append({"step": step, "sample_index": row, "rollout_n": counts[row], "validate": validate})
    return told
