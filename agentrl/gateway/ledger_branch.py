"""A ledger with its conversation, the turns in it, and the requests that wait to continue it."""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from agentrl.chat import Segment
from agentrl.chat.incremental import RenderCache
from agentrl.gateway import canonical
from agentrl.gateway.canonical import Digest
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.message import Message


@dataclass
class LedgerBranch:
    """A ledger and the conversation that it holds; `model`: the name in its first request."""

    schemas: list[dict[str, Any]]
    model: str = ""
    role: str = ""
    trained: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    messages: list[Message] = field(default_factory=list)
    """Messages as the template renders them: the model's turns as it wrote them, not as a client repeats them."""
    memory: RenderCache = field(default_factory=RenderCache)
    turns: int = 0
    """Turns that the model took in it."""
    shared: int = 0
    """Tokens at its beginning that are another's, from which it forks."""

    def other(self, shared: int = 0) -> "LedgerBranch":
        """A new branch of its model and tools."""
        return LedgerBranch(self.schemas, self.model, self.role, self.trained, shared=shared)


@dataclass
class Turn:
    """A turn that the model took, and the lengths of its ledger and its conversation after it."""

    branch: LedgerBranch
    number: int
    tokens: int
    media: int
    messages: int
    digest: Digest
    """Digest of the conversation up to it."""
    closed: bool
    name: str
    """Id of its answer."""
    marks: frozenset[str]
    """Call ids and thinking, which tell it from a turn with the same text."""
    continued: bool = False
    """Whether its ledger goes on after it, or a request is about to do that."""


@dataclass(frozen=True)
class Position:
    """The end of a request's history."""

    digest: Digest
    """Digest of all messages."""
    turn: Digest | None = None
    """Digest of the messages up to the model's last turn; None: it has taken none."""
    tail: tuple[Message, ...] = ()
    """Messages after that turn; empty while there is none."""
    marks: frozenset[str] = frozenset()
    """Marks of that turn, as its client repeats it."""

    def after(self, messages: Sequence[Message]) -> "Position":
        """The end of the history that goes on with `messages`."""
        digest, turn, tail, marks = self.digest, self.turn, list(self.tail), self.marks
        for message in messages:
            digest = canonical.after(digest, message)
            if message["role"] == "assistant":
                turn, tail, marks = digest, [], canonical.marks(message)
            elif turn is not None:
                tail.append(message)
        return Position(digest, turn, tuple(tail), marks)


@dataclass
class SampledTokens:
    """The tokens of one answer."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Version of the weights that drew each token."""
    experts: list[NDArray[Any]] = field(default_factory=list)
    """Experts of the tokens that the ledger has none of yet, request by request."""
    top: list[Sequence[tuple[int, float]]] = field(default_factory=list)
    """The likeliest tokens in the place of each and their log-probs, where its client wants them."""

    def keep(self, count: int) -> None:
        """Drop all but the first `count` tokens, as if generation had ended there."""
        del self.ids[count:], self.logprobs[count:], self.versions[count:]


@dataclass
class Pending:
    """A request that waits for its answer, and the branch that will hold it.

    It continues `turn`, or begins a ledger where that is None. `ids` and `media` are the whole prompt's; `known` tokens
    were there before, `segments` follow the turn, the last `begun` ones begin the answer. `new`: messages that it
    lacks; `digest`: of the conversation before the answer; `number`: of the request in its session, since
    concurrent ones draw from different seeds; `open`: whether it still waits.
    """

    branch: LedgerBranch
    ids: MutableSequence[int]
    media: list[Medium]
    new: list[Message]
    digest: Digest
    turn: Turn | None = None
    segments: Sequence[Segment] = ()
    known: int = 0
    begun: int = 0
    number: int = 0
    open: bool = True

    def give_up(self) -> None:
        """End without an answer: another request can continue the turn. Does nothing once there is an answer."""
        if self.open and self.turn is not None:
            self.turn.continued = False
        self.open = False
