"""One rollout's conversation with the gateway: requests in, answers out, tokens into the tree of ledgers.

Invariants:
- if the client disconnects, its answer is not written to a ledger;
- a turn is written in one step, after its last token, so that requests at the same time never mix;
- the run's sampling settings hold; a client's `max_tokens` and `stop` only shorten an answer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agentrl.chat import Chat
from agentrl.chat.template import LEAD_TOKENS
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.answer_format import unfenced
from agentrl.gateway.canonical import Digest, shown
from agentrl.gateway.halting import Halting
from agentrl.gateway.journal import lines, plain_turn, read_turn
from agentrl.gateway.ledger_branch import Pending, SampledTokens
from agentrl.gateway.ledger_tree import LedgerTree
from agentrl.gateway.posted_rewards import place_reward
from agentrl.gateway.reply import call_records, cut_at_stop, rename_calls
from agentrl.gateway.request import Body, Finish, ModelAnswer, TurnRequest
from agentrl.gateway.settings import AGENT_SAMPLING, TIMEOUT, Role, SessionSettings
from agentrl.gateway.size import too_long
from agentrl.http.refusals import Refused
from agentrl.rollout.episode import recorded, seed_for
from agentrl.rollout.loops.base import RolloutContext
from agentrl.trajectory.message import Message, as_tool_call, call_id
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord, Trajectory

MAX_REPEATS = 2
"""Further attempts at an answer whose form does not fit."""

MAX_WAITING = 256
"""Concurrent requests of one rollout; the client of a further one is asked to send it later."""

LAST_ANSWERS, LAST_OTHERS = 16, 64
"""Answers that a client gets again where they were lost; conversations with other servers."""


@dataclass
class AgentSession:
    """Answers one agent's requests and records them in its trajectory. Belongs to one event loop.

    `record` gets each turn and each reward, as its journal has them, before it counts.
    """

    trajectory: Trajectory
    env: RolloutContext
    sampling: Sampling
    settings: SessionSettings = field(default_factory=SessionSettings)
    record: Callable[[Mapping[str, Any]], None] = lambda line: None
    chat: Chat = field(init=False)
    tree: LedgerTree = field(init=False)
    closed: str = ""
    """Why it takes no further requests; empty while it does."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is closed."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first request."""
    failure: Exception | None = None
    """A failure of the engine, with no answer since."""
    requests: int = 0
    attempts: int = 0
    """Answers drawn: several for a request whose answers do not fit its format."""
    rewards: int = 0
    """Rewards that its client has posted."""
    waiting: int = 0
    """Requests without an answer yet."""
    others: list[tuple[str, list[Any], Any]] = field(default_factory=list)
    """Conversations with other servers: the model's name, the messages, the last answer."""
    unmet: Counter[str] = field(default_factory=Counter)
    _sent: dict[Digest, tuple[str, ModelAnswer]] = field(default_factory=dict)
    """The last answers and the names of their requests, by the conversations that they end."""
    context: Context = field(default_factory=copy_context)
    """The agent's context: it has the limits that a pause of the engine stops."""

    def __post_init__(self) -> None:
        env, matcher, self.chat = self.env, self.settings.matcher, self.env.chat
        longest, inference = env.limits.model_length, env.inference_template
        self.tree = LedgerTree(env.chat, longest, inference_template=inference, matcher=matcher)

    def ask(self, request: TurnRequest, *, again: str | None = None) -> asyncio.Future[ModelAnswer]:
        """The model's turn, under way. Raises Refused; a cancellation leaves nothing behind.

        `again`: the request may be one that has an answer already, with this name or, if that is empty, of any.
        """
        if again is not None and (answer := self._answered(request, again)) is not None:
            work: asyncio.Future[ModelAnswer] = asyncio.get_running_loop().create_future()
            work.set_result(answer)
            return work
        if self.waiting >= MAX_WAITING:
            raise Refused(f"{MAX_WAITING} requests of this rollout wait for their answers: ask again later", "busy")
        pending = self.begin(request)
        self.waiting += 1
        loop = asyncio.get_running_loop()
        work = loop.create_task(self.answer(request, pending), context=self.context.copy())
        work.add_done_callback(lambda work: self._over(pending, work, again or ""))
        return work

    def _answered(self, request: TurnRequest, again: str) -> ModelAnswer | None:
        """The answer that the same request has had."""
        name, answer = self._sent.get(self._placed(request).digest, ("", None))
        return None if answer is None or again not in ("", name) else replace(answer, body=request.body)

    def _over(self, pending: Pending, work: "asyncio.Future[ModelAnswer]", name: str) -> None:
        self.waiting -= 1
        pending.give_up()  # one that was cancelled before its first step
        if not work.cancelled() and work.exception() is None:
            self._sent[pending.digest] = name, replace(work.result(), body={})
            for old in list(self._sent)[:-LAST_ANSWERS]:
                del self._sent[old]

    def _placed(self, request: TurnRequest) -> Pending:
        """Where the request would go on. Raises Refused."""
        pending = self.tree.begin(request)
        pending.give_up()
        return pending

    def begin(self, request: TurnRequest) -> Pending:
        """Where the request goes on. Raises Refused."""
        self.asked.set()
        if not self.closed and self._full():
            limit = self.env.limits.assistant_turns
            self.trajectory.finish = "max_turns"
            self.close(f"it has taken its {limit} turns (rollout.multi_turn.max_assistant_turns)")
        if self.closed:
            raise Refused(f"this rollout is over: {self.closed}", "missing")
        pending = self._begun(self.tree.begin(request))
        self.requests += 1
        self.unmet.update(request.unmet)
        return pending

    def _full(self) -> bool:
        limit = self.env.limits.assistant_turns
        return limit is not None and self.trajectory.turns >= limit

    def _begun(self, pending: Pending) -> Pending:
        """The next turn of the rollout. Raises Refused."""
        longest = self.env.limits.model_length
        if len(pending.ids) >= longest:
            pending.give_up()
            raise too_long(len(pending.ids), longest)
        pending.number = self.attempts  # from 0, as turns: a linear agent draws from the seeds of the native loops
        self.attempts += 1
        return pending

    async def answer(self, request: TurnRequest, pending: Pending) -> ModelAnswer:
        """The model's turn, the last of several where their form did not fit. Raises Refused; a cancellation leaves
        nothing of the last one behind."""
        answer, wrong = await self._attempt(request, pending)
        for _ in range(MAX_REPEATS):
            again = self._again(answer, wrong, pending) if wrong and not self._full() else None
            if again is None:
                break
            answer, wrong = await self._attempt(request, again)
        missed = {"response_format": wrong and not answer.calls, "tool_choice": wrong and answer.calls}
        missed["parallel_tool_calls"] = request.one_call and answer.calls[1:]
        self.unmet.update(name for name, so in missed.items() if so)
        return answer

    def _again(self, answer: ModelAnswer, wrong: list[Message], pending: Pending) -> Pending | None:
        """The next attempt at an answer; None where the conversation has no room for it."""
        try:
            return self._begun(self.tree.after(self.tree.answers[answer.id], wrong, pending.digest))
        except Refused:
            return None

    async def _attempt(self, request: TurnRequest, pending: Pending) -> tuple[ModelAnswer, list[Message]]:
        """An answer, and the correction for the model where it does not fit the request."""
        try:
            with recorded(self.trajectory, "generate"):
                sampled, stopped = await self._draw(request, pending)
            answer = await self._written(request, pending, sampled, stopped)
        except BaseException as error:
            pending.give_up()
            if isinstance(error, InfraError | UserError):
                self.failure = error
                raise Refused(f"the engine failed: {error}", "overloaded") from error
            raise
        self.failure = None
        if self.env.on_turn is not None:
            await self.env.on_turn.run((self.trajectory,), {}, timeout=None)
        return answer, _asked_again(request, answer)

    def count(self, request: TurnRequest) -> int:
        """Tokens of a request's prompt. Raises Refused."""
        return len(self._placed(request).ids)

    def end(self, why: str) -> None:
        """Take no further requests, and note in the trajectory how its ledgers came about."""
        self.close(why)
        branches = self.tree.trained
        about: dict[str, Any] = {"requests": self.requests, "ledgers": len(branches)}
        if len(branches) > 1:
            about |= {name: [getattr(branch, name) for branch in branches] for name in ("shared", "model", "messages")}
        untrained = [(branch.model, branch.messages) for branch in self.tree.branches if not branch.trained]
        if others := [*untrained, *self.others]:
            about["others"] = [dict(zip(("model", "messages", "answer"), other, strict=False)) for other in others]
        if self.unmet:
            about["unmet"] = dict(self.unmet)
        self.trajectory.extra["gateway"] = about

    def close(self, why: str) -> None:
        """Take no further requests."""
        self.closed = self.closed or why
        self.over.set()

    async def _draw(self, request: TurnRequest, pending: Pending) -> tuple[SampledTokens, str | None]:
        """The tokens of the answer, and the stop string that ended it."""
        sampled, wishes = SampledTokens(), self._wishes(request)
        room = self.env.limits.model_length - len(pending.ids)
        most = min(self.sampling.max_new_tokens, room, request.max_tokens or room)
        halts = await self.env.shared.setdefault(Halting, Halting(self.chat)).at(request.stop)
        ends = wishes["stop_token_ids"]
        wishes["stop_token_ids"] = (*ends, *sorted(halts.ids.difference(ends)))
        stopped, more, text = None, most, ""
        while more > 0:
            alone = halts.single(text) or bool(request.logprobs)  # an engine reports candidates of first tokens
            if self.sampling.experts_from is not None:
                wishes["experts_from"] = pending.branch.ledger.routed + sum(map(len, sampled.experts))
            seed = seed_for(self.sampling.seed, self.trajectory.key, pending.number, len(sampled.ids))
            ids = [*pending.ids, *sampled.ids] if sampled.ids else pending.ids
            sampling = replace(self.sampling, max_new_tokens=1 if alone else more, seed=seed, **wishes)
            key, media = self.trajectory.key, pending.media
            generation = await self.env.engine.generate(ids, sampling, key=key, media=media)
            n = len(generation.token_ids)
            sampled.ids += generation.token_ids
            sampled.logprobs += generation.logprobs
            sampled.top += [generation.candidates] * (n if request.logprobs else 0)
            sampled.experts += [] if generation.experts is None else [generation.experts]
            sampled.versions += generation.versions or [generation.weight_version] * n
            text = self.chat.decode(sampled.ids) if request.stop else ""
            stopped = cut_at_stop(self.chat, sampled, text, request.stop) or self._cut_media(sampled)
            goes_on = stopped is None and _goes_on(generation, alone, halts.ids - {*ends})
            more = most - len(sampled.ids) if goes_on else 0
        return sampled, stopped

    def _wishes(self, request: TurnRequest) -> dict[str, Any]:
        """Settings of the request that differ from the run's sampling."""
        own = {name: getattr(request, name) for name in AGENT_SAMPLING} if self.settings.own_sampling else {}
        own = {name: value for name, value in own.items() if value is not None}
        run = {"candidates": request.logprobs or 0, "stop_token_ids": self.chat.stop_token_ids}
        adapter = request.role if request.role in self.env.sides else None
        return run | own | dict(request.sampling) | {"adapter": adapter}

    def _cut_media(self, sampled: SampledTokens) -> str | None:
        """End the answer before a token that stands for an image: no model can show itself one."""
        n = self.chat.processor.legible(sampled.ids)
        if n == len(sampled.ids):
            return None
        sampled.keep(n)
        self.trajectory.outcome = Outcome.MODEL_ERROR
        self.trajectory.error = "the model wrote the token that stands for an image"
        return ""

    async def _written(
        self, request: TurnRequest, pending: Pending, sampled: SampledTokens, stopped: str | None
    ) -> ModelAnswer:
        schemas = pending.branch.schemas
        at = len(pending.ids) - pending.begun
        lead = pending.ids[max(at - LEAD_TOKENS, 0) : at]
        reply = self.chat.parse([*pending.ids[at:], *sampled.ids], schemas, lead=lead)
        name = f"{self.trajectory.key}/{pending.number}"
        rename_calls(reply, name)
        calls = reply.calls if "tool_calls" in reply.message else []
        text, reasoning = shown(reply.message)
        if stopped:
            text = text.partition(stopped)[0] if stopped in text else text.removesuffix(stopped.rstrip())
        text = unfenced(text) if request.format is not None else text
        finish: Finish = "tool_calls" if calls else "stop" if reply.closed or stopped is not None else "length"
        tops = sampled.top or [()] * len(sampled.ids)
        tokens = map(self._token, sampled.ids, sampled.logprobs, tops) if request.logprobs is not None else ()
        answer = ModelAnswer(
            id=call_id(name, 0),
            model=request.model,
            created=int(time.time()),
            text=text,
            reasoning=reasoning,
            calls=calls,
            finish=finish,
            stop=stopped or None,
            prompt_tokens=len(pending.ids),
            cached_tokens=pending.known,
            completion_tokens=len(sampled.ids),
            tokens=list(tokens),
            body=request.body,
            prompt_ids={"prompt_token_ids": list(pending.ids)} if request.token_ids else {},
            ids={"token_ids": sampled.ids} if request.token_ids else {},
        )
        if self.settings.on_answer is not None:
            answer = await self.settings.on_answer.run((answer, self.trajectory), {}, timeout=TIMEOUT) or answer
        asked = [as_tool_call(call) for call in answer.calls]
        sent: Message = {"role": "assistant", "content": answer.text, "tool_calls": asked}
        records = call_records(reply.calls, self.tree.turns)
        self._write(pending, sampled, records, message=reply.message, sent=sent, name=answer.id, closed=reply.closed)
        return answer

    def _token(self, id: int, logprob: float, top: Sequence[tuple[int, float]] = ()) -> dict[str, Any]:
        text, likeliest = self.chat.decode([id]), [self._token(*each) for each in top]
        about = {"token": text, "bytes": list(text.encode()), "token_id": id}
        return {**about, "logprob": logprob, "top_logprobs": likeliest}

    async def pass_on(self, role: Role, path: str, body: dict[str, Any], history: Any) -> Any:
        """The answer of another server, under a key for this rollout. The last conversations with such are kept."""
        assert role.server is not None
        key = role.key or blake2b(self.trajectory.key.encode(), digest_size=16).hexdigest()
        headers = f"authorization: Bearer {key}\r\nx-api-key: {key}\r\nx-goog-api-key: {key}\r\n"
        answer = await role.server.post(path, body, headers=headers, timeout=TIMEOUT)
        if isinstance(history, list):
            others = [other for other in self.others if other[:2] != (role.name, history[: len(other[1])])]
            self.others = [*others[1 - LAST_OTHERS :], (role.name, history, answer)]
        return answer

    async def admitted(self, body: Body) -> Body:
        """A request's body as the hook leaves it. Raises Refused, also where the hook does."""
        if (hook := self.settings.on_request) is None:
            return body
        changed: Body | None = await hook.run((dict(body), self.trajectory), {}, timeout=TIMEOUT)
        return body if changed is None else changed

    def _write(self, pending: Pending, sampled: SampledTokens, calls: list[ToolCallRecord], **about: Any) -> None:
        """Write a turn into journal, ledger and trajectory, which may end at any time; `about`: as `LedgerTree.write`
        takes it."""
        self.record({"turn": plain_turn(pending, sampled), "calls": list(map(asdict, calls)), "about": about})
        self.tree.write(pending, sampled, **about)
        pending.branch.ledger.side = self.env.sides.get(pending.branch.role, 0)
        trajectory, trunk = self.trajectory, self.tree.trunk
        trajectory.tool_calls += calls
        if trunk is None:
            return
        trajectory.ledgers = [branch.ledger for branch in self.tree.trained]
        trajectory.messages, trajectory.schemas = trunk.messages, trunk.schemas
        trajectory.turns = self.tree.turns
        # The comparison with the template counts turns from the end of the row's prompt on.
        begun = next(i for i, message in enumerate(trunk.messages) if message["role"] == "assistant")
        trajectory.templated = len(trajectory.ledgers) == 1 and begun >= len(trajectory.row.prompt)

    def reward(self, body: Body) -> None:
        """A reward that the client posts. Raises Refused."""
        if not self.settings.rewards:
            raise Refused("rewards: this run's reward function gives them; with `rewards: true` an agent may")
        self.record({"reward": place_reward(body, self.trajectory, self.tree)})
        self.rewards += 1

    def restore(self, journal: Path) -> None:
        """Go on where a journal ends."""
        for line in lines(journal):
            if "turn" in line:
                pending, sampled = read_turn(line["turn"], self.tree)
                calls = [ToolCallRecord(**call | {"outcome": Outcome(call["outcome"])}) for call in line["calls"]]
                self._write(pending, sampled, calls, **line["about"])
                self.requests, self.attempts = self.requests + 1, max(self.attempts, pending.number + 1)
            elif "reward" in line:
                self.reward(line["reward"])
            else:
                self.close(line["end"])


def _goes_on(generation: Generation, alone: bool, halts: Set[int]) -> bool:
    """Whether the answer goes on after what the engine gave."""
    reason, ids = generation.finish_reason, generation.token_ids
    return reason == "abort" or (alone and reason == "length") or (reason == "stop" and ids[-1] in halts)


def _asked_again(request: TurnRequest, answer: ModelAnswer) -> list[Message]:
    """The correction for the model where its answer does not fit the request; empty: it fits, or was cut."""
    allowed = request.allowed
    if allowed is not None and any(call.name not in allowed for call in answer.calls):
        said = f"Not allowed now. Allowed tools: {', '.join(sorted(allowed)) or 'none'}."
        return [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": said} for call in answer.calls]
    if request.format is None or answer.finish != "stop" or answer.stop is not None:
        return []
    return request.format.asked_again(answer.text)
