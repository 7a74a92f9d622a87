"""Finished trajectories as bytes, for other processes.

Invariants: the row is not sent, for the receiver has it, and puts the same object back; token columns are sent as
arrays; the schemas of tools, which all trajectories of a run share, are in the receiver's memory once.
"""

import pickle
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

NO_ROW = Row("", [])
Packed = tuple[bytes, bytes]
"""(trajectory without row and schemas, schemas)."""


def pack(trajectory: Trajectory) -> Packed:
    """The trajectory as bytes. Raises InfraError for one with an object that cannot be pickled."""
    try:
        rest = replace(trajectory, row=NO_ROW, schemas=[], container=None)
        return pickle.dumps(rest, 5), pickle.dumps(trajectory.schemas, 5)
    except Exception as error:  # any object may be in a message or in `extra`, with any __reduce__
        raise InfraError(f"trajectory {trajectory.key} cannot leave its rollout worker: {error}") from error


def unpack(packed: Packed, row: Row) -> Trajectory:
    """The trajectory of `row` that `pack` made bytes of, in a worker of the same run."""
    trajectory: Trajectory = pickle.loads(packed[0])
    trajectory.row, trajectory.schemas = row, _schemas(packed[1])
    return trajectory


@lru_cache(maxsize=256)
def _schemas(data: bytes) -> Any:
    return pickle.loads(data)
