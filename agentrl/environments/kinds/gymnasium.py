"""Gymnasium's environments, and others with the same methods: spaces become text (see `action_text`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.points import environment_kind
from agentrl.environments.action_text import choices_of, parse, text_of, tools_of, uncoloured
from agentrl.environments.answers import Observation
from agentrl.environments.own import SteppedKind, fitted, is_own, load_own, require

RENDER = "render"


@environment_kind("gymnasium")
@dataclass(kw_only=True)
class GymnasiumEnvironment(SteppedKind):
    """One environment by its id, or by the path of a class or function that makes one.

    `observation`: "render" for the environment's own drawing, a text with {observation} and the observation's own names
    or {0}, {1}, or the path of a function of it; None: its values as text. `action`: the path of a function of the
    model's text, which raises ValueError for an invalid one; None: by the action space. `actions`: names of a Discrete
    space's actions, in their order. `hint`: end the first observation with the valid actions.
    """

    actions: list[str] | None = None

    def __post_init__(self) -> None:
        if self.observation == RENDER:
            self.kwargs = {"render_mode": "ansi", **self.kwargs}
        super().__post_init__()
        own = is_own(self.id)
        self.maker: Callable[..., Any] = load_own(self.id, self.folder, "gymnasium") if own else _registered(self.id)
        self.environment: Any = None

    def reset(self, seed: int) -> Observation:
        """Begin an episode. Raises UserError for names that do not fit the action space."""
        known = isinstance(self.maker, partial)
        self.environment = self.maker(**self.kwargs) if known else fitted(self.maker, **self.kwargs, seed=seed)
        self.space = getattr(self.environment, "action_space", None)
        choices = choices_of(self.space, self.actions)
        if self.actions and len(choices) != len(self.actions):
            raise UserError(f"actions has {len(self.actions)} names, and {self.id} takes {self.space}")
        observation, info = self.environment.reset(seed=seed)
        hint = f"\nActions: {', '.join(choices)}" if self.hint and choices and self.action is None else ""
        tools = tools_of(info.get("tools") or getattr(self.environment, "tools", ()), self.id)
        return Observation(self._text(observation) + hint, tools=tools, system=info.get("system"), info=dict(info))

    def step(self, action: str) -> Observation:
        """Read the action and take it."""
        try:
            value = self.action(action) if self.action else parse(self.space, action, self.actions)
        except ValueError as error:
            return Observation(f"Invalid action: {error}", invalid=True)
        observation, reward, terminated, truncated, info = self.environment.step(value)
        text, over, rewards = self._text(observation), bool(terminated or truncated), {0: float(reward)}
        return Observation(text, rewards=rewards, done=over, truncated=bool(truncated), info=dict(info))

    def close(self) -> None:
        """End the environment."""
        if self.environment is not None and hasattr(self.environment, "close"):
            self.environment.close()

    def _text(self, observation: Any) -> str:
        if self.observation == RENDER:
            return uncoloured(str(self.environment.render())).strip()
        if callable(self.observation):
            return str(self.observation(observation))
        if self.observation is None:
            return text_of(observation)
        several = observation if isinstance(observation, tuple | list) else ()
        named = observation if isinstance(observation, dict) else {}
        return self.observation.format(*several, **{"observation": text_of(observation)} | named)


def _registered(id: str) -> Callable[..., Any]:
    require("gymnasium", f"gymnasium: {id}")
    import gymnasium

    return partial(gymnasium.make, id)
