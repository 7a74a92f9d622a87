"""Rewards that a client posts: of its whole rollout, or of one answer."""

import re
from collections.abc import Mapping
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.numbers import reward_of
from agentrl.gateway.ledger_tree import LedgerTree
from agentrl.gateway.protocols.reading import LONGEST_NAME
from agentrl.gateway.request import Body
from agentrl.http.refusals import Refused
from agentrl.trajectory.trajectory import Trajectory, TurnReward

MAX_PARTS = 64


def place_reward(body: Body, trajectory: Trajectory, tree: LedgerTree) -> dict[str, Any]:
    """Give a reward in place of an earlier one for the same: `{"reward": number, "answer": id}`, or without `answer`
    the final one: a number, or parts by name. Returns the body without all else. Raises Refused."""
    given = body.get("reward")
    if "answer" in body:
        turn = TurnReward(_turn(str(body["answer"]), tree), _number(given), "environment")
        trajectory.turn_rewards = [old for old in trajectory.turn_rewards if old.turn != turn.turn] + [turn]
        return {"answer": turn.turn, "reward": turn.value}
    parts = given if isinstance(given, Mapping) else {"score": given}
    if not 0 < len(parts) <= MAX_PARTS:
        raise Refused(f"reward: give a number, or up to {MAX_PARTS} numbers by name")
    found = {name[:LONGEST_NAME]: _number(value) for name, value in parts.items()}
    trajectory.reward = found.get("score", sum(found.values()))
    trajectory.reward_extra = found
    return {"reward": found}


def _turn(answer: str, tree: LedgerTree) -> int:
    """The turn of an answer's id, before which a protocol may write its own letters, or number. Raises Refused."""
    id = re.split("[-_]", answer)[-1]
    if id in tree.answers:
        return tree.answers[id].number
    if re.fullmatch("[0-9]{1,6}", answer) and int(answer) < tree.turns:
        return int(answer)
    raise Refused(f"answer: this rollout has no {answer[:LONGEST_NAME]!r}; give an id, or a number from 0", "lost")


def _number(value: Any) -> float:
    try:
        return reward_of(value, "the client")
    except InfraError as error:
        raise Refused(str(error)) from error
