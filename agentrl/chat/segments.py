"""Labels the tokens that follow a turn with their sources.

Invariant: the segments together are one encoding of one text; they are never encoded separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from agentrl.chat.context import USER
from agentrl.chat.fixed_base import FixedBase
from agentrl.chat.template import TemplateRefusal
from agentrl.core.prefixes import common_length
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.message import TOOL_ROLES, Message

Segment = tuple[Source, list[int]]
"""The source of tokens, and the tokens to append to a ledger."""


@dataclass(frozen=True)
class Split:
    """The template rewrote the history: a new sample begins with the prompt `ids`."""

    ids: list[int]


class Segmenter:
    """Labels the tokens of one template. Stateless."""

    def __init__(self, base: FixedBase) -> None:
        self.base = base
        self.encode = base.template.encode_within
        self.closing_ids = self.encode(base.closing)
        self.end_ids = frozenset(i for i in map(base.template.token_id, base.stops) if i is not None)
        """Every token that may end a turn."""

    def observed(
        self, messages: Sequence[Message], *, closed: bool, last: int | None, before: Sequence[Message] = (USER,)
    ) -> list[Segment]:
        """The tokens after an assistant turn, as `Chat.observation` gives them, with `before` in front of the turn.

        Raises TemplateRefusal."""
        suffix = self.base.after(messages, before=before)
        ids = self.encode(suffix.text[suffix.end :])
        lead = [] if closed else self.encode(suffix.text[: suffix.end])
        begins_with_end = bool(ids) and ids[0] in self.end_ids
        # Any stop token counts as the template's own end; a header that stopped the model only as itself.
        already_there = closed and begins_with_end and (self.base.explicit or last in (None, ids[0]))
        head = max(common_length(ids, self.closing_ids), int(self.base.explicit and begins_with_end))
        skip = int(already_there)
        return self._joined([*lead, *ids[skip:head]], ids[max(skip, head) :], messages, before)

    def continued(self, ids: list[int], messages: Sequence[Message]) -> list[Segment]:
        """Label what a re-render added; `ids` begin after the stop token, or before it where the turn has none."""
        head = common_length(ids, self.closing_ids) or common_length(ids, self.closing_ids[1:])
        return self._joined(ids[:head], ids[head:], messages)

    def _joined(
        self, head: list[int], ids: list[int], messages: Sequence[Message], before: Sequence[Message] = (USER,)
    ) -> list[Segment]:
        """The turn's end, the messages and the generation prompt, without empty segments."""
        prompt = self.base.generation_ids
        n = len(ids) - len(prompt) if prompt and ids[-len(prompt) :] == prompt else len(ids)
        segments = [(Source.TEMPLATE, head), *self._by_role(ids[:n], messages, before), (Source.TEMPLATE, ids[n:])]
        return [(source, segment) for source, segment in segments if segment]

    def _by_role(self, ids: list[int], messages: Sequence[Message], before: Sequence[Message]) -> list[Segment]:
        runs = groupby(messages, lambda message: Source.TOOL if message["role"] in TOOL_ROLES else Source.USER)
        groups = [(source, list(run)) for source, run in runs]
        if len(groups) < 2:
            return [(groups[0][0] if groups else Source.TEMPLATE, ids)]
        segments, start = [], 0
        shown: list[Message] = []
        for source, group in groups[:-1]:
            shown += group
            end = max(start, self._length_of(shown, ids, before))
            segments.append((source, ids[start:end]))
            start = end
        return [*segments, (groups[-1][0], ids[start:])]

    def _length_of(self, messages: Sequence[Message], ids: list[int], before: Sequence[Message]) -> int:
        """Number of `ids` that belong to these first messages; 0 when the template cannot end after them."""
        try:
            suffix = self.base.after(messages, generation=False, before=before)
        except TemplateRefusal:
            return 0
        full = self.encode(suffix.text[suffix.end :])
        # The suffix begins with the turn's end, which `ids` have already lost.
        offset = next((k for k in range(len(full)) if full[k : k + 3] == ids[:3]), 0)
        return common_length(full[offset:], ids)
