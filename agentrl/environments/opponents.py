"""Opponents: they play the sides of a game that the policy does not play."""

import random
import re
from collections.abc import Callable

from agentrl.core.errors import UserError
from agentrl.environments.own import is_own, load_own

Opponent = Callable[[str], str]
"""The action for an observation, which has the text that is new to this side."""

OFFERED = re.compile(r"\[[^\[\]\n]+\]")
"""Actions as games write them: [4]."""


class RandomOpponent:
    """Plays one of the actions in square brackets that the last line with some of them offers."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)

    def __call__(self, observation: str) -> str:
        lines = [found for line in observation.splitlines() if (found := OFFERED.findall(line))]
        if not lines:
            raise UserError(
                "opponent random: the game offers no [actions] in its last message: name a function in `opponent`"
            )
        return self.draw.choice(lines[-1])


def opponent_of(name: str | None, folder: str, seed: str) -> Opponent:
    """A new opponent for one game. Raises UserError."""
    if name == "random":
        return RandomOpponent(seed)
    if name is None or not is_own(name):
        raise UserError(f"opponent is {name!r}: write random, or the path of a function such as rivals.py:cautious")
    found = load_own(name, folder, "opponent")
    opponent: Opponent = found() if isinstance(found, type) else found
    return opponent
