"""JSON as the form of an answer: the prompt states it, and an answer that does not fit is asked for again.

Invariant: every token is drawn from the policy's own distribution. A grammar in the engine would draw from another one
than the trainer computes log-probs under, leave no room for thinking or calls, and lose its place where a weight update
interrupts an answer.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.core.json_schema import Unchecked, WrongSchema, compiled
from agentrl.core.json_text import to_json
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message, text_of

FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
MAX_COMPLAINT_CHARS = 300
"""Characters of a complaint."""
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class AnswerFormat:
    """A JSON schema that answers have to fit."""

    written: str
    """The schema as JSON text; equal ones are equal formats."""

    def instruction(self) -> Message:
        """The message that tells the model: a user's, because templates drop or refuse late system messages."""
        schema = json.loads(self.written)
        kind = "one JSON object." if schema == ANY_OBJECT else f"JSON that fits this schema: {self.written}"
        return {"role": "user", "content": f"Write nothing but {kind}"}

    def asked_again(self, text: str) -> list[Message]:
        """The message about a text that does not fit; none where it does."""
        wrong = self._complaint(text)
        said = f"The answer does not fit: {(wrong or '')[:MAX_COMPLAINT_CHARS]}\n{text_of(self.instruction())}"
        return [{"role": "user", "content": said}] if wrong else []

    def _complaint(self, text: str) -> str | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"it is no JSON: {error}."
        try:
            found = compiled(json.loads(self.written)).errors(value)
        except Unchecked as failure:
            raise Refused(f"the response format cannot be checked: {failure}") from failure
        return f"{found[0].json_path}: {found[0].message}." if found else None


def read_format(given: Any, name: str) -> AnswerFormat | None:
    """The format of a field `name`; None where the answer is free. Raises Refused."""
    kind = given.get("type", "text") if isinstance(given, Mapping) else "text" if given is None else given
    if kind == "text":
        return None
    if kind == "json_object":
        return AnswerFormat(to_json(ANY_OBJECT))
    if kind != "json_schema":
        raise Refused(f"{name}.type: {kind!r} is not served; use text, json_object or json_schema")
    within = given.get("json_schema")
    schema = (within if isinstance(within, Mapping) else given).get("schema")
    if not isinstance(schema, Mapping):
        raise Refused(f"{name}: json_schema needs the field schema, a JSON schema")
    try:
        compiled(schema)
    except WrongSchema as error:
        raise Refused(f"{name}: the schema cannot be used: {error}") from error
    return AnswerFormat(to_json(schema))


def unfenced(text: str) -> str:
    """The JSON within a code fence; other text as it is."""
    found = FENCE.fullmatch(text.strip())
    return found[1].strip() if found else text
