"""Stop strings of clients on every engine: it draws no token after one, and its tokens are those of any other answer.

An engine knows tokens alone. So it halts at each token that may complete a stop string, the text says whether it does,
and where not the answer goes on after that token.
"""

import asyncio
from dataclasses import dataclass
from functools import cached_property

from agentrl.chat import Chat

MAX_HALTS = 8192
"""Tokens to halt at. A string that more of them may complete is looked for after every token."""
BROKEN = "\ufffd"
"""Stands in the text of a token for a part of a character."""
MAX_KNOWN_SETS = 64
"""Sets of stop strings."""

Stops = tuple[str, ...]


@dataclass(frozen=True)
class Halts:
    """Where answers with these stop strings halt."""

    stops: Stops = ()
    ids: frozenset[int] = frozenset()
    """Tokens that may complete a stop string, but for the white space at its end."""
    always: bool = False
    """Whether too many may: then each is drawn alone."""

    def single(self, text: str) -> bool:
        """Whether the token after `text` has to be drawn alone: white space may complete a stop string."""
        begun = (stop[:n] for stop in self.stops for n in range(len(_trigger(stop)), len(stop)))
        return self.always or any(map(text.endswith, begun))


class Halting:
    """Finds the tokens at which a run's engine halts."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._known: dict[Stops, Halts] = {(): Halts()}

    async def at(self, stops: Stops) -> Halts:
        """The halts of stop strings; in a thread where they are new."""
        if stops not in self._known:
            self._known = self._known if len(self._known) < MAX_KNOWN_SETS else {(): Halts()}
            self._known[stops] = await asyncio.to_thread(self._found, stops)
        return self._known[stops]

    def _found(self, stops: Stops) -> Halts:
        triggers = {_trigger(stop) for stop in stops}
        ends = {trigger[i:] for trigger in triggers for i in range(len(trigger))}
        within = triggers if all(map(str.isascii, stops)) else {*triggers, BROKEN}
        ids = frozenset(
            i
            for i, text in enumerate(self._texts)
            if any(text[:n] in ends for n in range(1, len(text) + 1)) or any(map(text.__contains__, within))
        )
        return Halts(stops, ids) if len(ids) <= MAX_HALTS else Halts(stops, always=True)

    @cached_property
    def _texts(self) -> list[str]:
        """Text of each token within a text: at its beginning some decoders drop white space."""
        before = self.chat.tokenizer.encode("x", add_special_tokens=False)[-1:]
        start = len(self.chat.decode(before))
        return [self.chat.decode([*before, i])[start:] for i in range(len(self.chat.tokenizer))]


def _trigger(stop: str) -> str:
    """The part of a stop string at which to halt: most tokens begin with white space."""
    return stop.rstrip() or stop
