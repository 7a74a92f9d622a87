"""A line of a data file of NeMo Gym: a request to the Responses API, and the fields that its server asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError
from agentrl.gateway.conversation import name_results
from agentrl.gateway.protocols import responses
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message

REQUEST = "responses_create_params"
NOTHING = "(the server begins)"


@dataclass(frozen=True)
class GymLine:
    """A line."""

    prompt: list[Message]
    """Empty where the server begins the conversation."""
    schemas: list[dict[str, Any]]
    """Schemas of the tools."""

    @property
    def tools(self) -> list[str]:
        """Names of the tools."""
        return [schema["function"]["name"] for schema in self.schemas]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "GymLine":
        """Raises UserError for what is not served."""
        written = line.get(REQUEST)
        if not isinstance(written, Mapping):
            raise UserError(f"it has no {REQUEST}: write lines of NeMo Gym, {{'{REQUEST}': {{'input': ...}}, ...}}")
        if "input" not in written:
            raise UserError(f"{REQUEST} has no input: write the prompts into the file first (`gym dataset --help`)")
        begun = bool(written["input"])
        try:
            request = responses.read(dict(written) if begun else {**written, "input": NOTHING})
            conversation = request.conversation
            prompt = [*conversation.head, *(conversation.reader(conversation.items, 0) if begun else [])]
        except Refused as error:
            raise UserError(f"{REQUEST}: {error}") from None
        if request.unmet:
            raise UserError(f"{REQUEST}: {request.unmet[0]} is none that runs here: leave the row out")
        name_results(prompt, {})
        return cls(prompt, request.tools)
