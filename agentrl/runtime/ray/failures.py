"""What went wrong on a worker, in one line."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.servers.http import ServerLost
from agentrl.training.checkpoint.folders import DamagedCheckpoint
from agentrl.training.checkpoint.restarts import WorkerDied

GRACE = 10.0
"""Seconds in which the ranks that broke off with another say so, and Ray notices a process that is gone."""
BROKEN = ("gloo", "NCCL", "Connection closed by peer", "Connection reset")
"""Words in the errors of a rank whose neighbour is gone."""
LOST = "lost the others"


def plain(error: BaseException, who: str) -> Exception:
    """The error to raise here for one that came back from the worker `who`."""
    if isinstance(error, RayActorError | ObjectLostError):
        return WorkerDied(f"{who} died: killed, out of memory, or its machine is gone")
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, DamagedCheckpoint):
        return cause
    if isinstance(cause, UserError):
        return UserError(str(cause))
    if isinstance(cause, WorkerDied):
        return WorkerDied(str(cause))
    if isinstance(cause, ServerLost):  # of a server: the engine brings it back and tries again
        return ServerLost(str(cause))
    if isinstance(cause, InfraError):
        return InfraError(str(cause))
    lines = str(cause).strip().splitlines()
    text = f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
    if any(word in text for word in BROKEN):
        return WorkerDied(f"{who} {LOST}: {text}")
    return InfraError(f"{who} failed: {text}")


def answers(refs: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """What all workers answered; raises what explains best why one did not.

    A rank that dies or fails leaves the others in a collective that cannot end: they are not waited for.
    """
    names_of = dict(zip(refs, names, strict=True))
    left = list(refs)
    while left:
        done, left = ray.wait(left, num_returns=1)
        if first := failure(done[0], names_of[done[0]]):
            found = worst([first] if explains(first) else [first, *late_failures(left, names_of)])
            raise found from found.__cause__
    return list(ray.get(list(refs)))


def late_failures(refs: list[Any], names: dict[Any, str]) -> list[Exception]:
    """What else went wrong, after a little while."""
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=GRACE) if refs else ([], [])
    return [error for ref in done if (error := failure(ref, names[ref]))]


def failure(ref: Any, who: str) -> Exception | None:
    """The error of a finished call, if it ended in one; its cause holds the worker's own traceback."""
    try:
        ray.get(ref)
    except RayError as error:
        found = plain(error, who)
        found.__cause__ = error
        return found
    return None


def explains(error: Exception) -> bool:
    """Whether nothing that comes later could say more."""
    if isinstance(
        error, DamagedCheckpoint
    ):  # the others have the same to say, and Ray complains about what nobody hears
        return False
    return isinstance(error, UserError) or (isinstance(error, WorkerDied) and LOST not in str(error))


def worst(errors: Sequence[Exception]) -> Exception:
    """The one to show: a person's mistake, or a death, which explains what broke at its neighbours."""
    return min(errors, key=lambda error: (not explains(error), not isinstance(error, WorkerDied)))
