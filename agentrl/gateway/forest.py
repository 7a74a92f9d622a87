"""The ledgers of one rollout: a history that goes on stays in its ledger, any other begins one.

Invariants:
- each sampled token is a model token of exactly one ledger, the one that it was drawn in;
- a ledger that forks from another repeats that one's tokens as its prompt (mask 0); nothing sampled is encoded again;
- a turn is continued in its ledger once; whoever comes second, or at the same time, forks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat import Chat, Segment, Split
from agentrl.chat.incremental import RenderCache
from agentrl.core.errors import UserError
from agentrl.gateway import canonical
from agentrl.gateway.canonical import Digest
from agentrl.gateway.request import Refused, Request
from agentrl.gateway.softening import softened
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium, media_of
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
    closed: bool
    continued: bool = False
    """Whether its ledger goes on after it, or a request is about to do that."""


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
    ids: list[int]
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
    number: int = 0
    """Of the request in its session: requests at the same time draw from seeds of their own."""

    def give_up(self) -> None:
        """There is no answer: the turn can be continued by another request."""
        if self.turn is not None:
            self.turn.continued = False


class Forest:
    """Finds the ledger that a request continues, and writes its answer there. Belongs to one event loop."""

    def __init__(self, chat: Chat, *, inference_template: bool = False) -> None:
        self.chat = chat
        self.inference_template = inference_template
        self.branches: list[Branch] = []
        """Those with an answer, in the order of their first."""
        self._turns: defaultdict[Digest, list[Turn]] = defaultdict(list)

    def begin(self, request: Request) -> Pending:
        """Find where a request goes on; that is its own until it is written or given up. Raises Refused."""
        history = list(canonical.digests(request.tools, request.messages))
        last = max((i for i, m in enumerate(request.messages) if m["role"] == "assistant"), default=-1)
        known = self._turns.get(history[last], ()) if last >= 0 else ()
        turn = next((turn for turn in known if not turn.continued), known[-1] if known else None)
        forms = softened(request.messages[last + 1 :], middle=True) if turn else softened(request.messages)
        for messages in forms:
            try:
                seen = self.chat.see(messages)
                if turn is not None:
                    return self._continued(turn, seen, history[-1])
                ids = self.chat.prompt(seen, request.tools)
                return Pending(Branch(request.tools), ids, media_of(seen), seen, history[-1])
            except UserError as error:
                refusal = error
        raise Refused(str(refusal)) from refusal

    def write(self, pending: Pending, drawn: Drawn, message: Message, sent: Message, *, closed: bool) -> None:
        """Write the tokens of a prompt that its ledger lacks, and those of the answer.

        `message` is the answer for the template, `sent` the one that the client knows. `closed`: a stop token ends it.
        """
        branch, ledger, number = pending.branch, pending.branch.ledger, self.turns
        if pending.turn is None:
            ledger.append_prompt(pending.ids, pending.media)
            self.branches.append(branch)
        else:
            for source, segment in pending.segments:
                ledger.append_observation(segment, source, turn=pending.turn.number)
            ledger.media[:] = pending.media
        ledger.append_model(drawn.ids, drawn.logprobs, turn=number, version=drawn.versions)
        branch.messages += [*pending.new, message]
        branch.turns += 1
        turn = Turn(branch, number, len(ledger), len(pending.media), len(branch.messages), closed)
        self._turns[canonical.after(pending.digest, sent)].append(turn)

    @property
    def turns(self) -> int:
        """Turns of the model's, over all ledgers."""
        return sum(branch.turns for branch in self.branches)

    @property
    def trunk(self) -> Branch | None:
        """The branch with the most turns; of several the first."""
        return max(self.branches, key=lambda branch: branch.turns, default=None)

    def _continued(self, turn: Turn, new: list[Message], digest: Digest) -> Pending:
        """After a turn: in its ledger, or as a fork. Raises UserError."""
        branch = turn.branch
        ids, history = branch.ledger.ids[: turn.tokens], branch.messages[: turn.messages]
        media = [*branch.ledger.media[: turn.media], *media_of(new)]
        segments = self._segments(turn, ids, history, new)
        if segments is None:
            whole = [*history, *new]
            split = Branch(branch.schemas, parent=branch)
            return Pending(split, self.chat.prompt(whole, branch.schemas), media_of(whole), whole, digest)
        prompt = ids + [token for _, segment in segments for token in segment]
        self.chat.processor.check(prompt, media)
        if not turn.continued:
            turn.continued = True
            return Pending(branch, prompt, media, new, digest, turn, segments, known=len(ids))
        fork = Branch(branch.schemas, parent=branch, shared=len(ids))
        return Pending(fork, prompt, media, [*history, *new], digest, known=len(ids))

    def _segments(
        self, turn: Turn, ids: list[int], history: list[Message], new: list[Message]
    ) -> Sequence[Segment] | None:
        """Tokens that follow a turn; None where the template rewrites what came before."""
        chat, schemas = self.chat, turn.branch.schemas
        if not self.inference_template:
            return chat.observation(new, closed=turn.closed, tools=schemas, last=ids[-1], history=history)
        memory = RenderCache() if turn.continued else turn.branch.memory
        step = chat.continuation(ids, [*history, *new], schemas, memory)
        return None if isinstance(step, Split) else step.segments
