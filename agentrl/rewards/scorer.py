"""The reward of a trajectory: the reward function's score plus those of its tools and its interaction.

Invariants: the function gets the model's own text only, never a tool's; a failure of the function (exception, timeout,
no number) masks the sample, unless `reward.on_failure` is zero; a UserError ends the run; a trajectory that already is
an infrastructure error is not scored.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.schema.reward import OverlongBuffer, Reward
from agentrl.core.clocks import now
from agentrl.core.errors import InfraError, UserError
from agentrl.core.numbers import reward_of
from agentrl.core.sandbox import Sandbox
from agentrl.rewards.function import RewardFn, arguments
from agentrl.rewards.managers import Manager, manager_for
from agentrl.rewards.terms import Term, total
from agentrl.trajectory.trajectory import Outcome, Span, Trajectory

log = logging.getLogger(__name__)

Decode = Callable[[list[int]], str]
Judge = Callable[[Trajectory], Awaitable[float]]
"""Scores a trajectory; raises InfraError."""


@dataclass(frozen=True)
class ScoreSources:
    """Sources of scores in a run besides the reward function and the reward model."""

    tools: bool = True
    interactions: bool = True
    loops: bool = False
    """Agent loops of the user's own, and rollouts of rows that score themselves."""
    needed: bool = True
    """Whether a trajectory needs one; without, its reward is 0."""


TOOLS_AND_INTERACTIONS = ScoreSources()


def length_penalty(overlong_buffer: OverlongBuffer, max_response_length: int, tokens: int) -> float:
    """The penalty for a long answer (DAPO, arXiv 2503.14476): 0 up to the buffer, then linearly down to the negative
    `penalty_factor` at the limit.

    `tokens`: number that the model made; those of tools and users do not count.
    """
    limit = overlong_buffer.max_resp_len or max_response_length
    buffer = overlong_buffer.len or max(1, limit // 5)
    return -overlong_buffer.penalty_factor * min(max((tokens - limit + buffer) / buffer, 0.0), 1.0)


class Scorer:
    """Scores trajectories as the section `reward` of the settings says."""

    def __init__(
        self,
        fn: RewardFn | None,
        reward: Reward,
        decode: Decode,
        *,
        manager: Manager | None = None,
        terms: Sequence[Term] = (),
        max_response_length: int = 0,
        sandbox: Sandbox | None = None,
        reward_model: Judge | None = None,
        sources: ScoreSources = TOOLS_AND_INTERACTIONS,
        policies: Sequence[str] = (),
    ) -> None:
        """`decode`: ids to text without special tokens. `manager` calls the reward function, or is one itself; None:
        the manager that `reward.reward_manager` names calls `fn`. `terms`: further functions.
        `max_response_length`: as in `data`. `sandbox`: for functions that ask for one. `reward_model` scores whole
        trajectories. `policies`: those with rewards under their names.

        Raises UserError when nothing can give a score.
        """
        self.decode, self.sandbox, self.policies = decode, sandbox, policies
        self.overlong_buffer, self.max_response_length = reward.overlong_buffer, max_response_length
        self.on_failure, self.zero_unless_stopped = reward.on_failure, reward.zero_unless_stopped
        manager = manager or (None if fn is None else manager_for(reward, fn))
        name = (reward.reward_manager.name if fn is None else fn.name) if terms else None
        self.terms = [*([] if manager is None else [Term(manager, fn, name=name)]), *terms]
        self.reward_model, self.reward_model_weight = reward_model, reward.reward_model.weight
        judged = bool(self.terms) or bool(reward_model is not None and self.reward_model_weight)
        self.left_out = (reward.tool_weight is None and judged, reward.interaction_weight is None and judged)
        """Whether scores of tools, and of interactions, are not added because function or model score the answers."""
        default = 0.0 if judged else 1.0
        self.tool_weight = default if reward.tool_weight is None else reward.tool_weight
        self.interaction_weight = default if reward.interaction_weight is None else reward.interaction_weight
        acting = (sources.tools and self.tool_weight) or (sources.interactions and self.interaction_weight)
        self.loops_only = not judged and not acting
        """Only agent loops can give scores."""
        self.needed = sources.needed
        if self.loops_only and self.needed and not sources.loops:
            raise UserError(
                "nothing gives a reward: set reward.custom_reward_function.path or reward.reward_model, or use tools "
                "or an interaction (rollout.multi_turn.tool_config_path, interaction_config_path) with "
                "reward.tool_weight or reward.interaction_weight above 0"
            )
        self._reported: set[str] = set()

    async def score(self, trajectory: Trajectory) -> None:
        """Set `reward` and `reward_extra`; after a failure set `outcome` and `error` instead."""
        if trajectory.outcome is Outcome.INFRA_ERROR:
            self._skip(trajectory)
            return
        start = now()
        try:
            score, extra = await self._function_score(trajectory)
            if self.reward_model is not None:
                extra["reward_model"] = reward_of(await self.reward_model(trajectory), "the reward model")
                score += self.reward_model_weight * extra["reward_model"]
            trajectory.reward_extra |= extra
            sides = [reward_of(trajectory.reward_extra.get(p, score), f"policy {p}") for p in self.policies]
        except InfraError as error:
            without_verdict(trajectory, str(error), self.on_failure)
            self._report(error)
            return
        finally:
            trajectory.spans.append(Span("score", start, now()))
        tools = sum(trajectory.tool_rewards.values())
        interaction = trajectory.interaction_score or 0.0
        trajectory.reward = score + self.tool_weight * tools + self.interaction_weight * interaction
        if self.zero_unless_stopped and trajectory.finish == "length":
            trajectory.reward = 0.0
        trajectory.side_rewards = trajectory.side_rewards or sides
        if self.overlong_buffer.enable:
            tokens = sum(ledger.model_tokens for ledger in trajectory.ledgers)
            penalty = length_penalty(self.overlong_buffer, self.max_response_length, tokens)
            trajectory.reward, trajectory.length_penalty = trajectory.reward + penalty, penalty
            if self.overlong_buffer.log:
                trajectory.reward_extra |= {"overlong_reward": penalty, "overlong": float(penalty < 0)}

    def expect(self, keys: Sequence[str]) -> None:
        """Announce trajectories that are scored together: `score` is called with each of them."""
        for term in self.terms:
            term.manager.expect(keys)

    async def close(self) -> None:
        """Stop all calls of the reward function."""
        for term in self.terms:
            await term.manager.close()

    def _skip(self, trajectory: Trajectory) -> None:
        for term in self.terms:
            term.manager.skip(trajectory.key)

    def _report(self, error: InfraError) -> None:
        """Log the first failure of each kind, so that the cause of masked samples is seen in the log."""
        kind = getattr(error.__cause__, "kind", type(error.__cause__).__name__)
        if kind not in self._reported:
            self._reported.add(kind)
            become = "is masked" if self.on_failure == "mask" else "scores 0"
            log.warning("%s (the sample %s; further ones of this kind are only counted)", error, become)

    async def _function_score(self, trajectory: Trajectory) -> tuple[float, dict[str, Any]]:
        if trajectory.reward is not None:  # the agent loop has set it: the reward function is not called
            self._skip(trajectory)
            return reward_of(trajectory.reward, "the agent loop, or the task's verification,"), {}
        if not self.terms:
            if self.loops_only and self.needed:
                raise UserError(
                    "an agent loop gave no score, and there is no reward function: let it set trajectory.reward "
                    "(reward_score in verl's output), or set reward.custom_reward_function.path"
                )
            return 0.0, {}
        given = arguments(trajectory, self.decode) | {"sandbox": self.sandbox}
        return await total(self.terms, given, trajectory.key)


def without_verdict(trajectory: Trajectory, error: str, choice: str) -> None:
    """Mask the trajectory, or score it 0, as `reward.on_failure` says."""
    trajectory.extra["no_verdict"] = error
    if choice == "zero":
        trajectory.reward = 0.0
    else:
        trajectory.outcome, trajectory.error = Outcome.INFRA_ERROR, error
