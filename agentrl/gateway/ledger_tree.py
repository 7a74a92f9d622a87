"""The tree of ledgers of one rollout: a history that goes on stays in its ledger, any other begins a new one.

Invariants:
- each sampled token is a model token of exactly one ledger, the one that it was drawn in;
- a ledger that forks from another repeats that one's tokens as its prompt (mask 0); nothing sampled is encoded again;
- a turn is continued in its ledger once; a second request, also one at the same time, forks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from agentrl.chat import Chat, Segment, Split
from agentrl.chat.incremental import RenderCache
from agentrl.core.errors import UserError
from agentrl.engines.experts import joined_experts
from agentrl.gateway import canonical
from agentrl.gateway.canonical import Digest
from agentrl.gateway.conversation import Marked, called, dereferenced, in_call_order, name_results, rendered
from agentrl.gateway.forced_prefix import forced_prefix
from agentrl.gateway.ledger_branch import LedgerBranch, Pending, Position, SampledTokens, Turn
from agentrl.gateway.relaxed_forms import relaxed_forms
from agentrl.gateway.request import TurnRequest
from agentrl.gateway.settings import Matcher
from agentrl.gateway.size import ITEMS_PER_MESSAGE, Size
from agentrl.http.refusals import Refused
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.medium import media_of
from agentrl.trajectory.message import Message


class LedgerTree:
    """Finds the ledger that a request continues, and writes its answer there. Belongs to one event loop."""

    def __init__(
        self, chat: Chat, longest: int, *, inference_template: bool = False, matcher: Matcher | None = None
    ) -> None:
        """`longest`: tokens of prompt and answer."""
        self.chat, self.size = chat, Size(longest)
        self.inference_template, self.matcher = inference_template, matcher
        self.branches: list[LedgerBranch] = []
        """Branches with an answer, in the order of their first one."""
        self._turns: defaultdict[Digest, list[Turn]] = defaultdict(list)
        self.answers: dict[str, Turn] = {}
        """Turns by the ids of their answers."""
        self._positions: dict[Digest, Position] = {}
        """Ends of earlier requests, by the mark of their last item."""
        self._last: Marked | None = None
        """Marks of the last request."""
        self._prefixes: dict[str, list[int]] = {}
        """Beginnings of required calls, by the name of the tool; empty: of any."""
        self._names: dict[str, str] = {}
        """Tools that were called, by the id of the call."""
        self._sent: dict[str, Message] = {}
        """Texts and calls of the answers, as clients got them, by the ids of their items."""

    def begin(self, request: TurnRequest) -> Pending:
        """Find the position that a request continues; it holds it until `write` or `give_up`. Raises Refused."""
        if request.same_tools:
            request = replace(request, tools=self._answered(request).branch.schemas)
        begun = [] if request.must_call is None else self._forced_prefix(request, request.must_call)
        pending = self._begin(request)
        pending.ids += begun
        pending.segments = [*pending.segments, (Source.TEMPLATE, begun)] if begun else pending.segments
        pending.begun = len(begun)
        return pending

    def _forced_prefix(self, request: TurnRequest, name: str) -> list[int]:
        """The beginning of the call that a request requires; `name`: its tool, empty for any. Raises Refused."""
        if not request.tools:
            raise Refused("tool_choice: it requires a call, and tools has none")
        try:
            if name not in self._prefixes:
                self._prefixes[name] = forced_prefix(self.chat, request.tools, name)
        except UserError as error:
            raise Refused(str(error)) from error
        return self._prefixes[name]

    def _begin(self, request: TurnRequest) -> Pending:
        self.size.check_count(len(request.conversation.items) // ITEMS_PER_MESSAGE)
        if request.previous:
            return self._following(request)
        end, whole = self._position(request)
        known = self._turns.get(end.turn, ()) if end.turn else ()
        turn = max(known, key=lambda turn: (len(turn.marks & end.marks), not turn.continued), default=None)
        if turn is not None:
            return self.after(turn, [*end.tail, *_instructions(request, turn)], end.digest)
        whole = [*request.conversation.head, *(rendered(self._read(request, 0)) if whole is None else whole)]
        if not whole:
            raise Refused("messages: give at least one")
        if self.matcher is not None and (found := self.matcher(whole, [b.messages for b in self.branches])) is not None:
            branch, new = self.branches[found[0]], whole[found[1] :]
            turn = next(turn for turn in reversed(self.answers.values()) if turn.branch is branch)
            return self.after(turn, new, end.digest)
        return self._new(request, [*whole, *_instructions(request)], end.digest)

    def write(
        self, pending: Pending, sampled: SampledTokens, message: Message, sent: Message, *, name: str, closed: bool
    ) -> None:
        """Write the tokens of a prompt that its ledger lacks, and those of the answer.

        `message` is the answer for the template, `sent` the one that the client knows, by `name`. `closed`: a stop
        token ends it.
        """
        branch, ledger, number = pending.branch, pending.branch.ledger, self.turns
        pending.open = False
        if pending.turn is None:
            ledger.append_prompt(pending.ids, pending.media)
            self.branches.append(branch)
        else:
            for source, segment in pending.segments:
                ledger.append_observation(segment, source, turn=pending.turn.number)
            ledger.media[:] = pending.media
        experts = joined_experts(sampled.experts)
        ledger.append_model(sampled.ids, sampled.logprobs, turn=number, version=sampled.versions, experts=experts)
        branch.messages += [*pending.new, message]
        branch.turns += 1
        digest = canonical.after(pending.digest, sent)
        marks = canonical.marks(message) | called(sent).keys()
        turn = Turn(branch, number, len(ledger), len(pending.media), len(branch.messages), digest, closed, name, marks)
        self._turns[digest].append(turn)
        self.answers[name] = turn
        self._sent.update(_items(name, sent))
        self._names.update(called(sent))

    @property
    def turns(self) -> int:
        """Turns of the model's, over all ledgers."""
        return sum(branch.turns for branch in self.branches)

    @property
    def trained(self) -> list[LedgerBranch]:
        """Branches that are trained on."""
        return [branch for branch in self.branches if branch.trained]

    @property
    def trunk(self) -> LedgerBranch | None:
        """The trained branch with the most turns; of several the first."""
        return max(self.trained, key=lambda branch: branch.turns, default=None)

    def _following(self, request: TurnRequest) -> Pending:
        """After the answer that the request names; with other instructions or tools in a new ledger. Raises Refused."""
        turn = self._answered(request)
        new, head = rendered(self._read(request, 0)), request.conversation.head
        digest = Position(turn.digest).after(new).digest
        history = turn.branch.messages[: turn.messages]
        branch = turn.branch
        same = canonical.start(request.identity) == canonical.start([*branch.schemas, branch.role, branch.trained])
        if same and (not head or history[: len(head)] == head):
            return self.after(turn, [*new, *_instructions(request, turn)], digest)
        old = [message for message in history if not (head and message["role"] == "system")]
        return self._new(request, [*head, *old, *new, *_instructions(request)], digest)

    def _answered(self, request: TurnRequest) -> Turn:
        """The turn that the request names. Raises Refused."""
        if request.previous not in self.answers:
            raise Refused(f"this rollout has no answer {request.previous!r} to follow: send the whole history", "lost")
        return self.answers[request.previous]

    def after(self, turn: Turn, new: list[Message], digest: Digest) -> Pending:
        """The position of new messages after a turn; `digest`: of the conversation that they end. Raises Refused."""
        return _first_form(relaxed_forms(new, middle=True), lambda new: self._continued(turn, new, digest))

    def _new(self, request: TurnRequest, messages: list[Message], digest: Digest) -> Pending:
        return _first_form(relaxed_forms(messages), lambda messages: self._begun(request, messages, digest))

    def _position(self, request: TurnRequest) -> tuple[Position, list[Message] | None]:
        """The end of the request's history, and the messages of all its items; None instead of these where some were
        read with an earlier request. Raises Refused."""
        last = request.conversation.marked(request.identity, self._last)
        marks = last.marks
        known = next((i for i in range(len(marks) - 1, 0, -1) if marks[i] in self._positions), 0)
        start = Position(canonical.start(request.identity)).after(request.conversation.head)
        read = self._read(request, known)
        self._last = last  # one that fits
        end = self._positions[marks[-1]] = (self._positions[marks[known]] if known else start).after(read)
        return end, None if known else rendered(read)

    def _read(self, request: TurnRequest, first: int) -> list[Message]:
        messages = request.conversation.since(first)
        self.size.check(messages)
        messages = dereferenced(messages, self._sent)
        name_results(messages, self._names)
        return in_call_order(messages, self._names)

    def _begun(self, request: TurnRequest, messages: list[Message], digest: Digest) -> Pending:
        """In a new ledger. Raises UserError."""
        seen, tools = self.chat.see(messages), request.tools
        branch = LedgerBranch(tools, request.model, request.role, request.trained)
        return Pending(branch, self.chat.prompt(seen, tools), media_of(seen), seen, digest)

    def _continued(self, turn: Turn, new: list[Message], digest: Digest) -> Pending:
        """After a turn: in its ledger, or as a fork. Raises UserError."""
        branch, new = turn.branch, self.chat.see(new)
        ids, history = branch.ledger.ids.snapshot(turn.tokens), branch.messages[: turn.messages]
        media = [*branch.ledger.media[: turn.media], *media_of(new)]
        segments = self._segments(turn, ids, history, new)
        if segments is None:
            whole = [*history, *new]
            split = branch.other()
            return Pending(split, self.chat.prompt(whole, branch.schemas), media_of(whole), whole, digest)
        added = list(chain.from_iterable(segment for _, segment in segments))
        self.chat.processor.check(added, media_of(new))
        ids.extend(added)
        if not turn.continued:
            turn.continued = True
            return Pending(branch, ids, media, new, digest, turn, segments, known=turn.tokens)
        fork = branch.other(shared=turn.tokens)
        return Pending(fork, ids, media, [*history, *new], digest, known=turn.tokens)

    def _segments(
        self, turn: Turn, ids: Sequence[int], history: list[Message], new: list[Message]
    ) -> Sequence[Segment] | None:
        """Tokens that follow a turn; None where the template rewrites what came before."""
        chat, schemas = self.chat, turn.branch.schemas
        if not self.inference_template:
            return chat.observation(new, closed=turn.closed, tools=schemas, last=ids[-1], history=history)
        memory = RenderCache() if turn.continued else turn.branch.memory
        step = chat.continuation(ids, [*history, *new], schemas, memory)
        return None if isinstance(step, Split) else step


def _items(name: str, sent: Message) -> Iterator[tuple[str, Message]]:
    """The items of an answer, as some protocols divide it, with their ids."""
    yield name, {"role": "assistant", "content": sent["content"]}
    for call in sent.get("tool_calls") or ():
        yield call["id"], {"role": "assistant", "content": "", "tool_calls": [call]}


def _instructions(request: TurnRequest, turn: Turn | None = None) -> list[Message]:
    """Instructions on the form of the answer, unless the conversation up to `turn` has them."""
    wanted = [] if request.format is None else [request.format.instruction()]
    known = [] if turn is None else turn.branch.messages[: turn.messages]
    return [message for message in wanted if message not in known]


def _first_form(forms: Iterable[list[Message]], begin: Callable[[list[Message]], Pending]) -> Pending:
    """The request in the first form that the template shows. Raises Refused."""
    for messages in forms:
        try:
            return begin(messages)
        except UserError as error:
            refusal = error
    raise Refused(str(refusal)) from refusal
