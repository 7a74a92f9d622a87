"""Errors of workers as one line."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError

from agentrl.core.errors import InfraError, UserError
from agentrl.http.client import ServerLost
from agentrl.training.checkpoint.restarts import WorkerDied

GRACE = 10.0
"""Seconds to wait for errors of the other ranks, and for Ray to notice a dead process."""
BROKEN = ("gloo", "NCCL", "Connection closed by peer", "Connection reset")
"""Words in the errors of a rank after another rank died."""
LOST = "lost the other ranks"


def plain_error(error: BaseException, who: str) -> Exception:
    """The error to raise here for an error of the worker `who`."""
    if isinstance(error, RayActorError | ObjectLostError):
        return WorkerDied(f"{who} died: killed, out of memory, or its machine is down")
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ObjectLostError):
        return WorkerDied(f"{who} lost tokens: the machine that had them is down")
    if isinstance(cause, UserError | InfraError):
        return cause
    lines = str(cause).strip().splitlines()
    text = f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
    if any(word in text for word in BROKEN):
        return WorkerDied(f"{who} {LOST}: {text}")
    return InfraError(f"{who} failed: {text}")


async def answered(ref: Any, who: str) -> Any:
    """The result of a call to come. Raises its error as one line."""
    try:
        return await ref
    except RayError as error:
        raise plain_error(error, who) from error


def results(refs: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Results of all workers. Raises the error that explains a failure best: a UserError only where all raise the same
    one, so that they can be called again.

    After a rank fails, the others may be stuck in a collective operation: they have GRACE seconds to answer.
    """
    names_of, left = dict(zip(refs, names, strict=True)), list(refs)
    while left:
        done, left = ray.wait(left, num_returns=1)
        if first := failure(done[0], names_of[done[0]]):
            late, stuck = ray.wait(left, num_returns=len(left), timeout=0 if is_death(first) else GRACE)
            errors = [first, *filter(None, [failure(ref, names_of[ref]) for ref in late])]
            # A death, which explains the errors of the other ranks, or a user's mistake.
            found = max(errors, key=lambda e: (is_death(e), isinstance(e, UserError), isinstance(e, WorkerDied)))
            alike = len(errors) == len(refs) and len(set(map(str, errors))) == 1
            raise (found if alike else of_some(found, stuck)) from found.__cause__
    return list(ray.get(list(refs)))


def of_some(error: Exception, stuck: Sequence[Any]) -> Exception:
    """The error to raise for one that not all workers have: their states differ, and `stuck` ones answer no call."""
    if stuck and isinstance(error, ServerLost):  # after which the weights would be sent again
        return WorkerDied(f"{error}; the other ranks wait for this one")
    return InfraError(str(error)) if isinstance(error, UserError) else error


def failure(ref: Any, who: str) -> Exception | None:
    """The error of a finished call, if any; its cause holds the worker's own traceback."""
    try:
        ray.get(ref)
    except RayError as error:
        found = plain_error(error, who)
        found.__cause__ = error
        return found
    return None


def is_death(error: Exception) -> bool:
    """Whether a process died, or asks for a restart: no later error can explain more."""
    return isinstance(error, WorkerDied) and LOST not in str(error)
