"""One try of one trajectory: its loop runs within a time limit, and a failure becomes its outcome."""

import logging
from collections.abc import Callable

from agentrl.core.blocking import Call, attributed
from agentrl.core.clocks import time_limit
from agentrl.core.errors import InfraError, UserError
from agentrl.core.mistakes import mistake_in_user_code
from agentrl.core.numbers import reward_of
from agentrl.engines.engine import Sampling
from agentrl.rollout.loops.base import AgentLoop
from agentrl.trajectory.ledger import LedgerError
from agentrl.trajectory.trajectory import Finish, Outcome, Trajectory

MakeLoop = Callable[[], AgentLoop]

log = logging.getLogger(__name__)


async def attempt(
    make: MakeLoop, trajectory: Trajectory, sampling: Sampling, timeout: float, own_timeout: float | None = None
) -> None:
    """Fill `trajectory` by a loop of its own. Raises UserError alone, for a programming error of the user's loop too.

    After `timeout` seconds (core/clocks.py) it is an infrastructure error. `own_timeout` comes in place of that: the
    row's own limit, after which the trajectory is a model error that counts as it is.
    """
    loop = make()
    # The one place that catches a trajectory's errors: engine, tools, interaction and user loops run in here.
    try:
        try:
            async with time_limit(timeout if own_timeout is None else own_timeout) as limit:
                await attributed(loop.run(trajectory, sampling), Call(f"agent loop {type(loop).__name__}.run", timeout))
        except TimeoutError:
            if own_timeout is None or not limit.expired():
                raise
            trajectory.outcome, trajectory.finish = Outcome.MODEL_ERROR, "timeout"
            trajectory.error = f"took longer than the {own_timeout:g} s of its task"
        for ledger in trajectory.ledgers:
            ledger.check()
        _check_rewards(trajectory)
    except UserError:
        raise
    except InfraError as error:
        fail(trajectory, "error", str(error))
    except LedgerError as error:
        trajectory.extra["ledger_violation"] = str(error)
        fail(trajectory, "error", f"ledger: {error}")
    except Exception as error:
        # User code raises TimeoutError too, for example of a socket.
        if isinstance(error, TimeoutError) and limit.expired():
            fail(trajectory, "timeout", f"took longer than rollout.trajectory_timeout={timeout:g} s")
        else:
            log.exception("trajectory %s", trajectory.key)
            if mistake := mistake_in_user_code(error):
                raise UserError(f"agent loop {type(loop).__name__}: {mistake}: correct the code") from error
            fail(trajectory, "error", f"{type(error).__name__}: {error}")


def fail(trajectory: Trajectory, finish: Finish, error: str) -> None:
    """Make it an infrastructure error."""
    trajectory.outcome = Outcome.INFRA_ERROR
    trajectory.finish = finish
    trajectory.error = error


def _check_rewards(trajectory: Trajectory) -> None:
    """Have numbers for all rewards. Raises InfraError: one that is none would cost the update of the whole batch."""
    for turn in trajectory.turn_rewards:
        turn.value = reward_of(turn.value, f"the {turn.source} of turn {turn.turn}")
    given = trajectory.tool_rewards
    trajectory.tool_rewards = {name: reward_of(value, f"tool {name!r}") for name, value in given.items()}
    trajectory.side_rewards = [reward_of(value, "a side of the game") for value in trajectory.side_rewards]
    for name in ("reward", "interaction_score"):
        if (value := getattr(trajectory, name)) is not None:
            setattr(trajectory, name, reward_of(value, f"the agent loop ({name})"))
