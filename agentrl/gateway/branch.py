"""A ledger and its conversation, the turns in it, and requests that wait to go on there."""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat import Segment
from agentrl.chat.incremental import RenderCache
from agentrl.gateway import canonical
from agentrl.gateway.canonical import Digest
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.message import Message


@dataclass
class Branch:
    """A ledger and the conversation that it holds."""

    schemas: list[dict[str, Any]]
    ledger: Ledger = field(default_factory=Ledger)
    messages: list[Message] = field(default_factory=list)
    """As the template renders them: the model's turns as it wrote them, not as a client repeats them."""
    memory: RenderCache = field(default_factory=RenderCache)
    turns: int = 0
    """Turns that the model took in it."""
    parent: "Branch | None" = None
    shared: int = 0
    """Tokens at its beginning that are the parent's."""


@dataclass
class Turn:
    """A turn that the model took: where its ledger and its conversation stood after it."""

    branch: Branch
    number: int
    tokens: int
    media: int
    messages: int
    digest: Digest
    """Of its conversation."""
    closed: bool
    marks: frozenset[str]
    """What tells it from a turn of the same text."""
    continued: bool = False
    """Whether its ledger goes on after it, or a request is about to do that."""


@dataclass(frozen=True)
class Place:
    """Where the history of a request ends."""

    digest: Digest
    """Of all its messages."""
    turn: Digest | None = None
    """Of those up to the model's last turn; None: it has taken none."""
    tail: tuple[Message, ...] = ()
    """Those after that turn; empty while there is none."""
    marks: frozenset[str] = frozenset()
    """Of that turn, as its client repeats it."""

    def after(self, messages: Sequence[Message]) -> "Place":
        """The place where the history ends that goes on with `messages`."""
        digest, turn, tail, marks = self.digest, self.turn, list(self.tail), self.marks
        for message in messages:
            digest = canonical.after(digest, message)
            if message["role"] == "assistant":
                turn, tail, marks = digest, [], canonical.marks(message)
            elif turn is not None:
                tail.append(message)
        return Place(digest, turn, tuple(tail), marks)


@dataclass
class Drawn:
    """The tokens of one answer."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Weights that each was drawn with."""

    def keep(self, count: int) -> None:
        """Drop all but the first `count` tokens, as if generation had ended there."""
        del self.ids[count:], self.logprobs[count:], self.versions[count:]


@dataclass
class Pending:
    """A request that waits for its answer, and where in the forest that goes."""

    branch: Branch
    ids: MutableSequence[int]
    """The whole prompt."""
    media: list[Medium]
    """All of it."""
    new: list[Message]
    """Messages that the branch does not have yet."""
    digest: Digest
    """Of the conversation before the answer."""
    turn: Turn | None = None
    """The turn that it continues; none in a new ledger."""
    segments: Sequence[Segment] = ()
    """Tokens that follow that turn."""
    known: int = 0
    """Tokens of the prompt that were there before."""
    begun: int = 0
    """Tokens at the end of the prompt that begin the answer."""
    number: int = 0
    """Of the request in its session: requests at the same time draw from seeds of their own."""

    open: bool = True
    """Whether it still waits."""

    def give_up(self) -> None:
        """There is no answer: the turn can be continued by another request. Nothing once there is one."""
        if self.open and self.turn is not None:
            self.turn.continued = False
        self.open = False
