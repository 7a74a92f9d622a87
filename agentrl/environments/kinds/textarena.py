"""TextArena's games. The policy plays one side, several, or all; an opponent plays the others.

Invariants: each side gets the messages that are new to it, without its own actions, which it wrote itself; wrappers of
observations are left out, because they repeat the whole game at every turn, and those of actions stay.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from agentrl.core.errors import InfraError, UserError
from agentrl.core.numbers import reward_of
from agentrl.core.points import environment_kind
from agentrl.environments.answers import SHOWN_CHARACTERS, Observation
from agentrl.environments.own import EnvironmentKind, fitted, is_own, load_own, require

Opponent = Callable[[str], str]
"""The action for an observation, which has the text that is new to this side."""

FIX = "write the path of a function that plays, `opponent: rivals.py:cautious`"
RANDOM = "random"
PLAYERS = "`opponent: random`, or the path of a function"
OFFERED = re.compile(r"\[[^\[\]\n]+\]")
"""Actions as games write them: [4]."""


GAME = -1
"""The sender of the game's own messages."""
LOST = -1.0
"""TextArena's reward of an invalid action that ends a game."""
OPPONENTS = 1_000
"""Most turns of opponents in a row."""
GAMES, TURNS = 3, 40
"""Rehearsals, and the most turns of each."""


class GameMessage(NamedTuple):
    """A message of the game or of a side."""

    sender: int
    text: str
    kind: str


@environment_kind("textarena", unfinished=-1.0)
@dataclass(kw_only=True)
class TextArenaGame(EnvironmentKind):
    """One game by its id, or by the path of a class or function that makes one.

    `players`: how many; None: 1, or 2 with `sides` or an `opponent`. `sides`: a list of those of the policy; "all",
    "alternate" (one side, the seed says which); None: side 0. `opponent`: "random", or the path of a function of the
    observation or of a class with such objects; plays the other sides.
    """

    players: Any = None
    sides: Any = None
    opponent: str | None = None

    def __post_init__(self) -> None:
        self.players = self.players or (1 if self.sides is None and self.opponent is None else 2)
        self.all_sides = _sides(self.sides, self.players)
        self.alternate = self.sides == "alternate"
        if len(self.all_sides) < self.players and self.opponent is None:
            raise UserError(f"no opponent plays the other sides: set {PLAYERS}, or `sides: all`")
        if self.alternate and self.opponent is None:
            raise UserError(f"`sides: alternate` needs an opponent: {PLAYERS}")
        require("textarena", f"textarena: {self.id}")
        import textarena  # takes a second: in the process that all games of an entry are forked from

        self.arena = textarena
        self.maker = load_own(self.id, self.folder, "textarena") if is_own(self.id) else None
        self.game: Any = None
        self.opponents: dict[int, Opponent] = {}
        self.sides = ()

    def reset(self, seed: int) -> Observation:
        """Begin a game; opponents move first where it is their turn. Raises UserError."""
        self._begin(seed, (self.all_sides[seed % len(self.all_sides)],) if self.alternate else self.all_sides)
        return self._next(done=False, after=None)

    def step(self, action: str) -> Observation:
        """Play the action, and the opponents' turns after it."""
        side = self.game.state.current_player_id
        done, _ = self.game.step(action=action)
        return self._next(done=done, after=side)

    def rehearse(self, seed: int) -> None:
        """Play games of random opponents alone. Raises UserError where half of their actions are refused: the game
        does not say in its messages which are allowed."""
        if self.opponent != RANDOM:
            return
        played = [self._rehearsed(seed + game) for game in range(GAMES)]
        tried, refused = (sum(counts) for counts in zip(*played, strict=True))
        if 2 * refused >= tried:
            raise UserError(f"opponent random: the game refuses {refused} of {tried} actions in [brackets]: {FIX}")

    def _rehearsed(self, seed: int) -> tuple[int, int]:
        """(actions that are tried, those that are refused)"""
        self._begin(seed, ())
        tried, refused, after, done = 0, 0, None, False
        while not done and tried < TURNS:
            side, messages = self._seen()
            refused += _refused(messages, again=side == after)
            try:
                action = self._opponents_action(side, messages)
            except InfraError as error:
                raise UserError(str(error)) from error
            done, _ = self.game.step(action=action)
            tried, after = tried + 1, side
        if done:
            refused += any(about.get("invalid_move") for about in self.game.close()[1].values())
        return tried, refused

    def _begin(self, seed: int, sides: tuple[int, ...]) -> None:
        """`sides`: those of the policy."""
        made = fitted(self.maker, **self.kwargs) if self.maker else self.arena.make(self.id, **self.kwargs)
        self.game, self.sides = self._without_observation_wrappers(made), sides
        others = [side for side in range(self.players) if side not in sides]
        self.opponents = {side: opponent_of(self.opponent, self.folder, f"{seed}/{side}") for side in others}
        self.game.reset(num_players=self.players, seed=seed)

    def _next(self, *, done: bool, after: int | None) -> Observation:
        """Let opponents play until it is the policy's turn; `after`: the side that has just played."""
        for _ in range(OPPONENTS):
            if done:
                return self._over(self.sides[0] if after is None else after)
            side, messages = self._seen()
            if side in self.sides:
                invalid = _refused(messages, again=side == after)
                return Observation(self._text(side, messages), side, invalid=invalid, sides=self.sides)
            done, _ = self.game.step(action=self._opponents_action(side, messages))
        raise InfraError(f"the game is not over after {OPPONENTS:,} turns of opponents in a row")

    def _opponents_action(self, side: int, messages: list[GameMessage]) -> str:
        """A random one reads the game's own messages only: others write in brackets, too."""
        if side not in self.opponents:
            raise InfraError(f"it is the turn of side {side}, and {self.players} play: correct `players`")
        opponent = self.opponents[side]
        if isinstance(opponent, RandomOpponent):
            messages = [each for each in messages if each.sender == GAME]
        return opponent(self._text(side, messages))

    def _seen(self) -> tuple[int, list[GameMessage]]:
        """The side whose turn it is, and the messages that are new to it."""
        side, messages = self.game.get_observation()
        return side, [_game_message(message) for message in messages]

    def _over(self, side: int) -> Observation:
        rewards, about = self.game.close()
        mine = about.get(side) or {}
        given = {player: value for player, value in (rewards or {}).items() if player in self.sides}
        earned = {player: _reward(value, about.get(player) or {}) for player, value in given.items()}
        invalid, why = bool(mine.get("invalid_move")), str(mine.get("reason") or "The game is over.")
        return Observation(why, side, earned, done=True, invalid=invalid, sides=self.sides, info=mine)

    def _text(self, side: int, messages: list[GameMessage]) -> str:
        """The messages that are new to a side; actions of others under their names."""
        names, lines = self.game.state.role_mapping, []
        for sender, text, kind in messages:
            if kind == "PLAYER_ACTION" and sender == side:
                continue
            lines.append(text if sender == GAME else f"[{names.get(sender, f'Player {sender}')}] {text}")
        return "\n".join(lines).strip()

    def _without_observation_wrappers(self, game: Any) -> Any:
        kept = []
        while isinstance(game, self.arena.Wrapper):
            if not isinstance(game, self.arena.ObservationWrapper | self.arena.RenderWrapper):
                kept.append(game)
            game = game.env
        for wrapper in reversed(kept):
            wrapper.env, game = game, wrapper
        return game


def _game_message(message: Any) -> GameMessage:
    """A message whose parts may stand in any order: some games mix them up. Raises InfraError."""
    senders = [part for part in message if isinstance(part, int) and not isinstance(part, Enum)]
    texts = [part for part in message if isinstance(part, str)]
    kinds = [part.name for part in message if isinstance(part, Enum)]
    if not len(senders) == len(texts) == len(kinds) == 1:
        raise InfraError(f"the game's message {str(message)[:SHOWN_CHARACTERS]!r} is not a sender, a text and its kind")
    return GameMessage(senders[0], texts[0], kinds[0])


def _reward(value: Any, about: dict[str, Any]) -> float:
    """A side's reward. Some games give the reason in its place where an invalid action ends them."""
    if isinstance(value, str) and about.get("invalid_move"):
        return LOST
    return reward_of(value, "the game")


def _refused(messages: list[GameMessage], *, again: bool) -> bool:
    """Whether a side's last action was none; `again`: it is its turn again."""
    return again and any(each.kind == "GAME_ADMIN" for each in messages)


def _sides(written: Any, players: int) -> tuple[int, ...]:
    """The sides that the policy may play. Raises UserError."""
    if written in ("all", "alternate"):
        return tuple(range(players))
    sides = [0] if written is None else written
    fits = isinstance(sides, list) and all(type(side) is int and 0 <= side < players for side in sides)
    if not fits or not sides or len(set(sides)) < len(sides):
        raise UserError(f"sides is {written!r}: write all, alternate, or numbers from 0 to {players - 1}, such as [0]")
    return tuple(sorted(sides))


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
