"""The class that interactions derive from, with verl's signatures."""

from typing import Any
from uuid import uuid4


class BaseInteraction:
    """A simulated user. One object serves the whole run; what belongs to one trajectory is kept under `instance_id`.

    For each trajectory: `start_interaction` once, `generate_response` per answer of the model, `calculate_score`
    once at the end, `finalize_interaction` once, always. All four may be async or plain functions; plain ones run
    in threads. Each gets the row's `extra_info.interaction_kwargs` as keyword arguments, as far as it takes them.
    The last two may do without `instance_id`, as in verl's base class.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        """`config` is the YAML's, with the interaction's name under "name"."""
        self.config = {} if config is None else config
        self.name: str = self.config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a trajectory. Returns the id for later calls."""
        return instance_id or uuid4().hex

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Reply to the conversation, whose last message is the model's answer.

        Returns whether the conversation is over, the user's text (not shown then), a score for this turn, and further
        values for the record.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define generate_response()")

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the whole conversation; called once at the end. Without it, the last turn's score counts."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """End a trajectory: drop its state. Called even when start_interaction failed."""
