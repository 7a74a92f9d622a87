"""The share that one rollout worker has of a limit of the whole run.

Invariant: the shares of all workers add up to the limit. The number of a worker is in its environment, as
torch.distributed has a rank's, because limits are set where tools, rewards and programs are made.
"""

import os

from agentrl.core.errors import UserError

VARIABLE = "AGENTRL_ROLLOUT_WORKER"
"""Environment variable of a rollout worker: "2/8" is the third of eight."""
KEY = "rollout.agent.num_workers"


def share_of(limit: int, name: str) -> int:
    """This process's share of the limit `name`; the whole limit outside of rollout workers.

    Raises UserError for a limit that leaves a worker nothing.
    """
    number, workers = worker()
    if limit < workers:
        raise UserError(
            f"{name}={limit} is a limit of the whole run, and {KEY}={workers} share it: raise it, or take {limit} "
            f"worker{'s' if limit > 1 else ''}"
        )
    return limit // workers + (number < limit % workers)


def worker() -> tuple[int, int]:
    """(number of this rollout worker, number of all); (0, 1) outside of rollout workers."""
    number, _, workers = os.environ.get(VARIABLE, "0/1").partition("/")
    return int(number), int(workers)
