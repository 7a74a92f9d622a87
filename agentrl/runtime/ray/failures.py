"""Errors of workers as one line."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError

from agentrl.core.errors import InfraError, UserError
from agentrl.http.client import ServerLost
from agentrl.training.checkpoint.lineage import DamagedCheckpoint
from agentrl.training.checkpoint.restarts import PassTooLarge, WorkerDied

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
    if isinstance(cause, DamagedCheckpoint | PassTooLarge):
        return cause
    for kind in (UserError, WorkerDied, ServerLost, InfraError):  # the engine restarts a lost server, and retries
        if isinstance(cause, kind):
            return kind(str(cause))
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
    """Results of all workers. Raises the error that explains a failure best.

    After a rank dies or fails, the others are stuck in a collective operation: this does not wait for them.
    """
    names_of = dict(zip(refs, names, strict=True))
    left = list(refs)
    while left:
        done, left = ray.wait(left, num_returns=1)
        if first := failure(done[0], names_of[done[0]]):
            errors = [first] if is_conclusive(first) else [first, *late_failures(left, names_of)]
            # A user error, or a death, which explains the errors of the other ranks.
            found = min(errors, key=lambda error: (not is_conclusive(error), not isinstance(error, WorkerDied)))
            raise found from found.__cause__
    return list(ray.get(list(refs)))


def late_failures(refs: list[Any], names: dict[Any, str]) -> list[Exception]:
    """Further errors within GRACE seconds."""
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=GRACE) if refs else ([], [])
    return [error for ref in done if (error := failure(ref, names[ref]))]


def failure(ref: Any, who: str) -> Exception | None:
    """The error of a finished call, if any; its cause holds the worker's own traceback."""
    try:
        ray.get(ref)
    except RayError as error:
        found = plain_error(error, who)
        found.__cause__ = error
        return found
    return None


def is_conclusive(error: Exception) -> bool:
    """Whether no later error can explain more."""
    if isinstance(error, DamagedCheckpoint):  # all ranks raise it, and Ray logs the errors that are not fetched
        return False
    return isinstance(error, UserError) or (isinstance(error, WorkerDied) and LOST not in str(error))
