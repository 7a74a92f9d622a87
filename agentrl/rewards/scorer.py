"""What a trajectory is worth: the reward function's score plus those of its tools and its interaction.

Invariants: the function sees the model's own words only, never a tool's; a failure of the function (exception,
timeout, no number) is an infrastructure error that masks the sample, never a score of 0; a UserError ends the run; a
trajectory that already is an infrastructure error is not scored.
"""

import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from math import isfinite
from numbers import Real
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.sandbox import Sandbox
from agentrl.rewards.arguments import arguments
from agentrl.rewards.function import RewardFn
from agentrl.rewards.managers import Manager, manager_for
from agentrl.rewards.overlong import Overlong
from agentrl.trajectory.trajectory import Outcome, Span, Trajectory

log = logging.getLogger(__name__)

Decode = Callable[[list[int]], str]
Judge = Callable[[Trajectory], Awaitable[float]]
"""Scores a trajectory; raises InfraError."""


class Scorer:
    """Scores trajectories, `num_workers` calls of the reward function at a time, each for at most `timeout` seconds."""

    def __init__(
        self,
        fn: RewardFn | None,
        *,
        tool_weight: float | None,
        interaction_weight: float | None,
        num_workers: int,
        timeout: float,
        decode: Decode,
        tools: bool = True,
        interactions: bool = True,
        loops: bool = False,
        sandbox: Sandbox | None = None,
        manager: str | Manager = "naive",
        overlong: Overlong | None = None,
        reward_model: Judge | None = None,
        reward_model_weight: float = 1.0,
    ) -> None:
        """`decode` turns ids to text without special tokens; `tools` and `interactions` say whether the run has any,
        `loops` whether it has agent loops of the user's own, which may score what they made.

        A function that asks for the `sandbox` is not timed: its programs are, and a wait for their turn is no failure.
        `manager` says how the function is called; one that is no name is asked in the function's place. `overlong`
        takes off for answers that come near the limit. `reward_model` scores a whole trajectory. A weight of None is 0
        where one of these judges the answers already, else 1. Raises UserError when nothing could ever give a score.
        """
        judged = reward_model is not None and reward_model_weight
        custom = None if isinstance(manager, str) else manager
        alone = fn is None and custom is None and not judged
        self.left_out = (tool_weight is None and not alone, interaction_weight is None and not alone)
        """Whether scores of tools, and of interactions, are not added because something else judges the answers."""
        tool_weight = float(alone) if tool_weight is None else tool_weight
        interaction_weight = float(alone) if interaction_weight is None else interaction_weight
        acting = (tools and tool_weight) or (interactions and interaction_weight)
        if fn is None and custom is None and not judged and not acting and not loops:
            raise UserError(
                "nothing gives a reward: set reward.custom_reward_function.path or reward.reward_model, or use tools "
                "or an interaction (rollout.multi_turn.tool_config_path, interaction_config_path) with "
                "reward.tool_weight or reward.interaction_weight above 0"
            )
        self.fn = fn
        self.tool_weight = tool_weight
        self.interaction_weight = interaction_weight
        self.overlong = overlong
        self.decode = decode
        self.sandbox = sandbox
        self.reward_model = reward_model
        self.reward_model_weight = reward_model_weight
        self.nothing_else = fn is None and custom is None and not judged and not acting
        """Whether only loops give scores."""
        self.manager = custom
        if fn is not None and isinstance(manager, str):
            self.manager = manager_for(manager, fn, num_workers=num_workers, timeout=timeout)
        self._reported: set[str] = set()

    async def score(self, trajectory: Trajectory) -> None:
        """Set `reward` and `reward_extra`; on trouble set `outcome` and `error` instead."""
        if trajectory.outcome is Outcome.INFRA_ERROR:
            if self.manager is not None:
                self.manager.absent()
            return
        start = time.time()
        try:
            score, extra = await self._function_score(trajectory)
            if self.reward_model is not None:
                extra["reward_model"] = await self._judged(self.reward_model, trajectory)
                score += self.reward_model_weight * extra["reward_model"]
        except InfraError as error:
            trajectory.outcome, trajectory.error = Outcome.INFRA_ERROR, str(error)
            self._report(error)
            return
        finally:
            trajectory.spans.append(Span("score", start, time.time()))
        tools = sum(trajectory.tool_rewards.values())
        interaction = trajectory.interaction_score or 0.0
        trajectory.reward = score + self.tool_weight * tools + self.interaction_weight * interaction
        trajectory.reward_extra |= extra
        if self.overlong is not None:
            penalty = self.overlong.penalty(sum(ledger.model_tokens for ledger in trajectory.ledgers))
            trajectory.reward, trajectory.length_penalty = trajectory.reward + penalty, penalty
            if self.overlong.log:
                trajectory.reward_extra |= {"overlong_reward": penalty, "overlong": float(penalty < 0)}

    def expect(self, trajectories: int) -> None:
        """So many calls of `score` will come before anybody waits for them all."""
        if self.manager is not None:
            self.manager.expect(trajectories)

    async def close(self) -> None:
        """Stop what still runs."""
        if self.manager is not None:
            await self.manager.close()

    def _report(self, error: InfraError) -> None:
        """Log the first failure of each kind: a run that masks every sample should not look like bad luck."""
        kind = type(error.__cause__).__name__
        if kind not in self._reported:
            self._reported.add(kind)
            log.warning("%s (the sample is masked; further ones of this kind are only counted)", error)

    async def _judged(self, judge: Judge, trajectory: Trajectory) -> float:
        score = await judge(trajectory)
        if not isfinite(score):
            raise InfraError(f"the reward model says {score}, not a finite number")
        return score

    def _given_by_loop(self, reward: float) -> float:
        """What the trajectory's loop found it to be worth; nobody else is asked."""
        if self.manager is not None:
            self.manager.absent()
        if not isfinite(reward):
            raise InfraError(f"the agent loop says {reward}, not a finite number")
        return reward

    async def _function_score(self, trajectory: Trajectory) -> tuple[float, dict[str, float]]:
        if trajectory.reward is not None:
            return self._given_by_loop(trajectory.reward), {}
        if self.manager is None:
            if self.nothing_else:
                raise UserError(
                    "an agent loop gave no score, and there is no reward function: let it set trajectory.reward "
                    "(reward_score in verl's output), or set reward.custom_reward_function.path"
                )
            return 0.0, {}
        name = "manager" if self.fn is None else self.fn.name
        given = arguments(trajectory, self.decode) | {"sandbox": self.sandbox}
        if self.fn is not None:
            given = self.fn.arguments(given)
        try:
            result = await self.manager(given)
        except UserError:  # a package is missing, say: masked, the answers that did not need it would teach alone
            raise
        except InfraError as error:
            raise InfraError(f"reward function {name}: {error}") from error
        except Exception as error:  # the user's code: whatever it raises
            raise InfraError(f"reward function {name} failed: {_last_line(error)}") from error
        return _parts(result, name)


def _last_line(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{traceback.format_exception_only(error)[-1].strip()} ({where.filename}:{where.lineno})"


def _parts(result: Any, name: str) -> tuple[float, dict[str, float]]:
    """Score and numeric extras of what a reward function returned. Raises InfraError when there is no finite score."""
    values = dict(result) if isinstance(result, Mapping) else {"score": result}
    if "score" not in values:
        raise InfraError(
            f'reward function {name} returned a dict without "score"; it has {", ".join(map(str, values))}'
        )
    numbers = {str(key): number for key, value in values.items() if (number := _number(value)) is not None}
    score = numbers.get("score")
    if score is None or not isfinite(score):
        raise InfraError(f"reward function {name} returned {values['score']!r}, not a finite number")
    return score, numbers if isinstance(result, Mapping) else {}


def _number(value: Any) -> float | None:
    """Python's, numpy's and torch's numbers as a float; None for anything else."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if isinstance(value, Real) else None
