"""Refuses histories that cannot fit the model, before anything is hashed, rendered or encoded: that would keep all
rollouts waiting."""

from collections.abc import Sequence

from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message, text_of

MAX_TOKEN_CHARS, USUAL_TOKEN_CHARS = 16, 4
"""Characters of a token: the most on average in a long text, and usually."""
UNCHECKED_MESSAGES = 1000
"""Messages that are accepted without a count."""
UNCHECKED_VALUES, VALUES_PER_TOKEN = 200_000, 4
"""Values of a body that are accepted for a model of any length, and the most values for each token of its length."""
MESSAGE_TOKENS = 2
"""Tokens that a message takes at the least: its role, and a mark around it."""
ITEMS_PER_MESSAGE = 2
"""Most items of a protocol that make one message: reasoning stands apart, and the template does not see it."""


class Size:
    """Checks what fits into `longest` tokens."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def check_body(self, body: bytes) -> None:
        """Raises Refused for JSON of more values than fit: reading them would keep all rollouts waiting."""
        values = body.count(b",")
        if values > max(UNCHECKED_VALUES, VALUES_PER_TOKEN * self.longest):
            raise too_long(values, self.longest)

    def check(self, messages: Sequence[Message]) -> None:
        """Raises Refused for messages with more text, or more of them and their calls, than fit."""
        calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
        self.check_count(len(messages) + len(calls))
        size = sum(len(text_of(message)) for message in messages)
        size += sum(len(str(call["arguments"])) for call in calls)
        if size > MAX_TOKEN_CHARS * self.longest:
            raise too_long(size // USUAL_TOKEN_CHARS, self.longest)

    def check_count(self, count: int) -> None:
        """Raises Refused for more messages than fit."""
        if count > UNCHECKED_MESSAGES and count * MESSAGE_TOKENS > self.longest:
            raise too_long(count * MESSAGE_TOKENS, self.longest)


def too_long(tokens: int, limit: int) -> Refused:
    """The error at which agents compact their history."""
    longest = f"This model's maximum context length is {limit} tokens."
    text = f"{longest} However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
    return Refused(text, "context", tokens=tokens, limit=limit)
