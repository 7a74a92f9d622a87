"""Writes one trajectory, or one side of a game in it: keeps messages, ledger and limits in step.

Invariants:
- the tokens of a generation are appended to the ledger before any other use;
- an observation that leaves no room for an answer is not appended, and ends the trajectory;
- an aborted generation keeps its tokens, and the rest is generated within the remaining budget;
- a sampled token that stands for an image is not appended: the trajectory ends with the token before it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

from agentrl.chat import Chat, Segment, Split
from agentrl.chat.incremental import RenderCache
from agentrl.chat.template import LEAD_TOKENS
from agentrl.core.clocks import listening, now
from agentrl.core.errors import InfraError, UserError, plural
from agentrl.core.user_code import UserFunction
from agentrl.data import truncate
from agentrl.engines.engine import Engine, FinishReason, Generation, Sampling
from agentrl.interactions import InteractionSet
from agentrl.rollout.first_token import redraw_first_token
from agentrl.tools import ToolSet
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium, media_of
from agentrl.trajectory.message import Reply
from agentrl.trajectory.trajectory import Finish, Message, Outcome, Span, SpanKind, Trajectory

SHORTEST_WAIT = 0.001
"""Seconds; a shorter wait is not recorded."""


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens; None is no limit."""

    prompt_length: int
    response_length: int
    """All tokens after the first prompt, over all turns, from any source."""
    model_length: int
    """Longest sequence the engine takes."""
    truncation: str = "error"
    """Side of an overlong prompt that is cut: left, right, middle; error refuses it."""
    images: int = sys.maxsize
    """Images and videos of one conversation, including those of tools."""
    assistant_turns: int | None = None
    user_turns: int | None = None
    parallel_calls: int = 8
    consecutive_errors: int = 4
    """Turns in a row with nothing but bad tool calls."""


@dataclass(frozen=True)
class RolloutContext:
    """Engine, chat, tools, interactions and limits: shared by all trajectories of a run."""

    engine: Engine
    chat: Chat
    tools: ToolSet
    interactions: InteractionSet
    limits: Limits
    inference_template: bool = False
    on_turn: UserFunction | None = None
    """Called with the trajectory after every turn of the model's."""
    settings: Any = None
    """The run's whole configuration, for loops that were written for verl and expect it."""
    sides: Mapping[str, int] = field(default_factory=dict)
    """The sides of several policies by their names."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """Objects that loops keep for the time of the run, by keys that they choose."""


@dataclass
class Episode:
    """One trajectory, and all that continues it."""

    trajectory: Trajectory
    env: RolloutContext
    sampling: Sampling
    """`max_new_tokens` is an upper bound; the trajectory's remaining budget is another. With `candidates` the first
    token of the response is drawn at a high temperature (first_token.py)."""
    schemas: list[dict[str, Any]]
    """Schemas of the tools in the prompt."""
    side: int | None = None
    """The side of a game: the messages of others are not among its own. None: there are no sides."""
    used: int = 0
    """Tokens after the first prompt, over all its ledgers."""
    done: bool = False
    memory: RenderCache = field(default_factory=RenderCache)
    """The conversation's last rendering."""
    said: list[Message] = field(default_factory=list)
    """The messages of a side."""

    def __post_init__(self) -> None:
        self.trajectory.schemas = self.schemas

    @property
    def ledger(self) -> Ledger:
        """The training sample being written."""
        ledgers = self.trajectory.ledgers
        if self.side is None:
            return ledgers[-1]
        return next(ledger for ledger in reversed(ledgers) if ledger.side == self.side)

    @property
    def messages(self) -> list[Message]:
        """The conversation, as the template shows it."""
        return self.trajectory.messages if self.side is None else self.said

    @property
    def room(self) -> int:
        """Tokens that may still be appended."""
        return min(self.env.limits.response_length - self.used, self.env.limits.model_length - len(self.ledger))

    def finish(self, why: Finish) -> None:
        """End the trajectory, with the reason."""
        self.trajectory.finish = why
        self.done = True

    def begin(self, prompt: list[Message] | None = None) -> None:
        """Write the prompt; None: the row's. Raises UserError when it is too long and `truncation` is error."""
        self._say(self.env.chat.see(self.trajectory.row.prompt if prompt is None else prompt))
        media = media_of(self.messages)
        if len(media) > self.env.limits.images:
            uid = self.trajectory.row.uid
            raise UserError(f"{uid} has {plural(len(media), 'image')}; raise rollout.limit_images, or leave it out")
        ids = self.env.chat.prompt(self.messages, self.schemas)
        ids = truncate(ids, self.env.limits.prompt_length, "error" if media else self.env.limits.truncation)
        self._new_ledger(ids, media)

    async def generate(self) -> Reply:
        """Generate the model's next turn; sets `done` when the length or the turns are used up."""
        drawn: list[int] = []
        lead = self.ledger.ids[-LEAD_TOKENS:]
        finish: FinishReason | None = None
        with recorded(self.trajectory, "generate"):
            while finish is None or (finish == "abort" and self.room > 0):
                request, ledger = self._request(len(drawn)), self.ledger
                generation = await self.env.engine.generate(
                    ledger.ids.snapshot(), request, key=self.trajectory.key, media=ledger.media
                )
                finish = self._append_generation(generation, request, drawn)
        reply = self.env.chat.parse(drawn, self.schemas, lead=lead)
        self._say([reply.message])
        self.trajectory.turns += 1
        if self.env.on_turn is not None:
            await self.env.on_turn.run((self.trajectory,), {}, timeout=None)
        if not reply.closed and not self.done:
            self.finish("length")
        return reply

    def observe(self, messages: list[Message], *, closed: bool) -> None:
        """Append new messages; ends the trajectory when no room for an answer is left."""
        try:
            messages = self.env.chat.see(messages)
        except UserError as error:  # the image comes from a tool, not from the data
            raise InfraError(str(error)) from error
        history = list(self.messages)
        self._say(messages)
        if self.env.inference_template:
            self._rerender()
            return
        last = self.ledger.ids[-1]
        segments = self.env.chat.observation(messages, closed=closed, tools=self.schemas, last=last, history=history)
        self._append(segments, media_of(messages))

    def _say(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        if self.side is not None:
            self.trajectory.messages.extend({**message, "side": self.side} for message in messages)

    def _request(self, drawn: int) -> Sampling:
        """How to draw the rest of a turn of which `drawn` tokens are there."""
        hot = self.sampling.candidates > 0 and not self.used
        return replace(
            self.sampling,
            max_new_tokens=1 if hot else min(self.sampling.max_new_tokens, self.room),
            candidates=self.sampling.candidates if hot else 0,
            seed=seed_for(self.sampling.seed, self.trajectory.key, self.trajectory.turns, drawn),
            stop_token_ids=self.env.chat.stop_token_ids,
            adapter=next((name for name, side in self.env.sides.items() if side == self.side), None),
            experts_from=None if self.sampling.experts_from is None else self.ledger.routed,
        )

    def _append_generation(self, generation: Generation, request: Sampling, drawn: list[int]) -> FinishReason:
        """Append the tokens of a generation to the ledger and to `drawn`; returns why it ended."""
        generation = redraw_first_token(generation, request) if request.candidates else generation
        generation = self._without_media_tokens(generation)
        version = generation.versions or generation.weight_version
        turn = self.trajectory.turns
        ids, logprobs, experts = generation.token_ids, generation.logprobs, generation.experts
        self.ledger.append_model(ids, logprobs, turn=turn, version=version, experts=experts)
        self.used += len(generation.token_ids)
        drawn.extend(generation.token_ids)
        return generation.finish_reason

    def _without_media_tokens(self, generation: Generation) -> Generation:
        """Cut the generation before a token that stands for an image: a model error, scored by the text before it."""
        n = self.env.chat.processor.legible(generation.token_ids)
        if n == len(generation.token_ids):
            return generation
        self.finish("max_errors")
        self.trajectory.outcome = Outcome.MODEL_ERROR
        self.trajectory.error = "the model wrote the token that stands for an image"
        kept = {name: getattr(generation, name)[:n] for name in ("token_ids", "logprobs", "versions")}
        return replace(generation, **kept, finish_reason="stop")

    def _rerender(self) -> None:
        """Append what the template shows at inference; start a new ledger when that rewrites the history."""
        step = self.env.chat.continuation(self.ledger.ids, self.messages, self.schemas, self.memory)
        media = media_of(self.messages)
        if not isinstance(step, Split):
            self._append(step, media[len(self.ledger.media) :])
        elif self.used >= self.env.limits.response_length or len(step.ids) >= self.env.limits.model_length:
            self.finish("length")
        else:
            self._new_ledger(step.ids, media)

    def _append(self, segments: Sequence[Segment], media: Sequence[Medium]) -> None:
        """Append an observation, or end the trajectory when it leaves no room for an answer."""
        full = len(self.ledger.media) + len(media) > self.env.limits.images
        if full or sum(len(ids) for _, ids in segments) >= self.room:
            self.finish("length")
            return
        self.env.chat.processor.check(list(chain.from_iterable(ids for _, ids in segments)), media)
        self.ledger.media.extend(media)
        for source, ids in segments:
            self.ledger.append_observation(ids, source, turn=self.trajectory.turns - 1)
            self.used += len(ids)

    def _new_ledger(self, ids: list[int], media: Sequence[Medium]) -> None:
        self.env.chat.processor.check(ids, media)
        ledger = Ledger(side=self.side or 0)
        ledger.append_prompt(ids, media)
        self.trajectory.ledgers.append(ledger)


@contextmanager
def recorded(trajectory: Trajectory, kind: SpanKind) -> Iterator[None]:
    """Record the time of the body in a trajectory, and apart from it the wait before it begins."""
    start = now()
    with listening() as heard:
        yield
    began = min(heard, default=start)
    if began - start < SHORTEST_WAIT:
        began = start
    else:
        trajectory.spans.append(Span("wait", start, began))
    trajectory.spans.append(Span(kind, began, now()))


def seed_for(base: int | None, *what: object) -> int:
    """63-bit seed for (base, what...); the same on every machine and in every process."""
    text = "/".join(str(part) for part in (base, *what))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
