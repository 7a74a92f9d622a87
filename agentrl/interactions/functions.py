"""Plain functions as simulated users."""

from collections.abc import Callable
from typing import Any

from agentrl.core.user_code import UserFunction
from agentrl.interactions.base import BaseInteraction


class FunctionInteraction(BaseInteraction):
    """A user without state: `fn(messages, **kwargs)` reacts to the model's answer, the last of `messages`.

    `kwargs` are those of the row's `interaction_kwargs` that the function takes. It may be async or plain, and returns
    (should_terminate, content[, score[, extra]]) as `BaseInteraction.generate_response` does.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.function = UserFunction(fn)
        super().__init__({"name": self.function.name})

    async def generate_response(self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        """Call the function; a plain one runs in a thread."""
        return await self.function.run((messages,), self.function.fit(kwargs), timeout=None)
