"""Opponents: they play the sides of a game that the policy does not play."""

import random
import re
from collections.abc import Callable

from agentrl.core.errors import InfraError, UserError
from agentrl.environments.own import is_own, load_own

Opponent = Callable[[str], str]
"""The action for an observation, which has the text that is new to this side."""

FIX = "write the path of a function that plays, `opponent: rivals.py:cautious`"
RANDOM = "random"
OFFERED = re.compile(r"\[[^\[\]\n]+\]")
"""Actions as games write them: [4]."""


class RandomOpponent:
    """Plays one of the actions in square brackets that the last line with some of them offers; where new text has none,
    one of those before."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)
        self.offered: list[str] = []

    def __call__(self, observation: str) -> str:
        lines = [found for line in observation.splitlines() if (found := OFFERED.findall(line))]
        self.offered = lines[-1] if lines else self.offered
        if not self.offered:
            raise InfraError(f"opponent random: the game offers no [actions]: {FIX}")
        return self.draw.choice(self.offered)


def opponent_of(name: str | None, folder: str, seed: str) -> Opponent:
    """A new opponent for one game. Raises UserError."""
    if name == RANDOM:
        return RandomOpponent(seed)
    if name is None or not is_own(name):
        raise UserError(f"opponent is {name!r}: write random, or the path of a function such as rivals.py:cautious")
    found = load_own(name, folder, "opponent")
    opponent: Opponent = found() if isinstance(found, type) else found
    return opponent
