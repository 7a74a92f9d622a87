"""The answer of an environment, and the contract of its kinds.

A kind is a class made as `Kind(id, kwargs, **others)` whose objects serve one trajectory each: `reset(seed)` and
`step(action)` give an Observation, `close()` ends it. It lives in a separate process (see `server`), so it may block,
seed the global random numbers and crash.
"""

from dataclasses import dataclass, field
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.json_text import whole
from agentrl.core.numbers import reward_of
from agentrl.environments.answers import MAX_TEXT_CHARACTERS


@dataclass(frozen=True)
class Observation:
    """The state of an environment after a reset or a step, as text."""

    text: str
    """New text only: the model has the earlier ones in its conversation."""
    side: int = 0
    """The player whose turn it is."""
    rewards: dict[int, float] = field(default_factory=dict)
    """Earned since the last observation, by side."""
    done: bool = False
    """Whether it is over, by its own rules or limit."""
    truncated: bool = False
    """Whether a limit ended it."""
    invalid: bool = False
    """Whether the action was no valid one: the model's error. The environment may go on."""
    sides: tuple[int, ...] = (0,)
    """The sides that the policy plays, after a reset."""
    info: dict[str, Any] = field(default_factory=dict)
    """Further values, for a reward function of the entry's own; not sent to the loop."""

    @classmethod
    def of_json(cls, values: dict[str, Any], who: str) -> "Observation":
        """Read the form that `to_json` wrote. Raises InfraError."""
        rewards = {int(side): reward_of(value, who) for side, value in values["rewards"].items()}
        text = whole(str(values["text"]))
        return cls(**values | {"text": text, "rewards": rewards, "sides": tuple(values["sides"])})

    def to_json(self) -> dict[str, Any]:
        """All but `info`, as JSON has it. Raises InfraError for a text that no model can read."""
        if len(self.text) > MAX_TEXT_CHARACTERS:
            raise InfraError(
                f"an observation has {len(self.text):,} characters, and {MAX_TEXT_CHARACTERS:,} are the most"
            )
        values = {name: value for name, value in vars(self).items() if name != "info"}
        rewards = {str(side): float(value) for side, value in self.rewards.items()}
        return values | {"text": whole(self.text), "rewards": rewards}
