"""TextArena's games. The policy plays one side, several, or all; an opponent plays the others.

Invariants: each side gets the messages that are new to it, without its own actions, which it wrote itself; wrappers of
observations are left out, because they repeat the whole game at every turn, and those of actions stay.
"""

from typing import Any, Literal

from agentrl.core.errors import UserError
from agentrl.core.points import environment_kind
from agentrl.environments.observation import Observation
from agentrl.environments.opponents import Opponent, opponent_of
from agentrl.environments.own import fitted, is_own, load_own, require

GAME = -1
"""The sender of the game's own messages."""


@environment_kind("textarena", unfinished=-1.0)
class TextArenaGame:
    """One game by its id, or by the path of a class or function that makes one."""

    def __init__(
        self,
        id: str,
        kwargs: dict[str, Any],
        *,
        folder: str = ".",
        players: int | None = None,
        sides: list[int] | Literal["all", "alternate"] | None = None,
        opponent: str | None = None,
    ) -> None:
        """`players`: how many; None: 1, or 2 with `sides` or an `opponent`. `sides`: those of the policy; "all",
        "alternate" (one side, the seed says which); None: side 0. `opponent`: "random", or the path of a function of
        the observation or of a class with such objects; plays the other sides.
        """
        self.players = players or (1 if sides is None and opponent is None else 2)
        self.id, self.kwargs, self.folder, self.opponent = id, dict(kwargs), folder, opponent
        self.all_sides = _sides(sides, self.players)
        self.alternate = sides == "alternate"
        if len(self.all_sides) < self.players and opponent is None:
            raise UserError(
                "no opponent plays the other sides: set `opponent: random`, or the path of a function, or `sides: all`"
            )
        if self.alternate and opponent is None:
            raise UserError("`sides: alternate` needs an opponent: `opponent: random`, or the path of a function")
        require("textarena", f"textarena: {id}")
        import textarena  # takes a second: in the process that all games of an entry are forked from

        self.arena = textarena
        self.maker = load_own(id, folder, "textarena") if is_own(id) else None
        self.game: Any = None
        self.opponents: dict[int, Opponent] = {}
        self.sides: tuple[int, ...] = ()

    def reset(self, seed: int) -> Observation:
        """See Observation. Raises UserError."""
        made = fitted(self.maker, **self.kwargs) if self.maker else self.arena.make(self.id, **self.kwargs)
        self.game = self._without_observation_wrappers(made)
        self.sides = (self.all_sides[seed % len(self.all_sides)],) if self.alternate else self.all_sides
        others = [side for side in range(self.players) if side not in self.sides]
        self.opponents = {side: opponent_of(self.opponent, self.folder, f"{seed}/{side}") for side in others}
        self.game.reset(num_players=self.players, seed=seed)
        return self._next(done=False, after=None)

    def step(self, action: str) -> Observation:
        """See Observation."""
        side = self.game.state.current_player_id
        done, _ = self.game.step(action=action)
        return self._next(done=done, after=side)

    def close(self) -> None:
        """A game has nothing to release."""

    def _next(self, *, done: bool, after: int | None) -> Observation:
        """Let opponents play until it is the policy's turn; `after`: the side that has just played."""
        while not done:
            side, messages = self.game.get_observation()
            if side in self.sides:
                refused = side == after and any(kind.name == "GAME_ADMIN" for _, _, kind in messages)
                return Observation(self._text(side, messages), side, invalid=refused, sides=self.sides)
            done, _ = self.game.step(action=self.opponents[side](self._text(side, messages)))
        return self._over(self.sides[0] if after is None else after)

    def _over(self, side: int) -> Observation:
        rewards, about = self.game.close()
        mine = about.get(side) or {}
        earned = {player: float(value) for player, value in (rewards or {}).items() if player in self.sides}
        invalid, why = bool(mine.get("invalid_move")), str(mine.get("reason") or "The game is over.")
        return Observation(why, side, earned, done=True, invalid=invalid, sides=self.sides, info=mine)

    def _text(self, side: int, messages: list[tuple[int, str, Any]]) -> str:
        """The messages that are new to a side; actions of others under their names."""
        names, lines = self.game.state.role_mapping, []
        for sender, text, kind in messages:
            if kind.name == "PLAYER_ACTION" and sender == side:
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


def _sides(written: Any, players: int) -> tuple[int, ...]:
    """The sides that the policy may play. Raises UserError."""
    if written in ("all", "alternate"):
        return tuple(range(players))
    sides = [0] if written is None else written
    fits = isinstance(sides, list) and all(type(side) is int and 0 <= side < players for side in sides)
    if not fits or not sides or len(set(sides)) < len(sides):
        raise UserError(f"sides is {written!r}: write all, alternate, or numbers from 0 to {players - 1}, such as [0]")
    return tuple(sorted(sides))
