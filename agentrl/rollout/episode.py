"""A trajectory in the making: keeps messages, ledger and limits in step.

Invariants:
- every token of a generation goes to the ledger before anything else happens with it;
- nothing is appended after the last token the model may still answer to: an observation that leaves no
  room for a reply ends the trajectory instead;
- an aborted generation keeps its tokens, and the rest is asked for with what is left of the budget;
- no image's token is ever sampled into the ledger: what was drawn before it stands, and the trajectory ends there.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.chat import Chat, Segment, Split
from agentrl.chat.incremental import RenderCache
from agentrl.chat.template import LEAD
from agentrl.core.errors import InfraError, UserError
from agentrl.core.plurals import plural
from agentrl.core.queueing import listening
from agentrl.core.user_code import UserFunction
from agentrl.data import truncate
from agentrl.engines.engine import Engine, Generation, Sampling
from agentrl.rollout.fire import redraw_first_token
from agentrl.rollout.limits import Limits
from agentrl.rollout.seeds import seed_for
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium, media_of
from agentrl.trajectory.message import Reply
from agentrl.trajectory.trajectory import Finish, Message, Outcome, Span, SpanKind, Trajectory

SHORTEST_WAIT = 0.001
"""Seconds; what is shorter is no wait."""


@dataclass
class Episode:
    """One trajectory, the engine that continues it, and the chat format that gives its tokens a meaning."""

    trajectory: Trajectory
    engine: Engine
    chat: Chat
    limits: Limits
    sampling: Sampling
    """`max_new_tokens` is an upper bound; the budget left of the trajectory counts as well. With `candidates` the first
    token of the response is drawn hot (fire.py)."""
    schemas: list[dict[str, Any]]
    """Tools as the model sees them."""
    inference_template: bool = False
    on_turn: UserFunction | None = None
    used: int = 0
    """Tokens after the first prompt, over all ledgers."""
    done: bool = False
    memory: RenderCache = field(default_factory=RenderCache)
    """Of the conversation as it was last rendered."""

    def __post_init__(self) -> None:
        self.trajectory.schemas = self.schemas

    @property
    def ledger(self) -> Ledger:
        """The training sample being written."""
        return self.trajectory.ledgers[-1]

    @property
    def room(self) -> int:
        """Tokens that may still be appended."""
        return min(self.limits.response_length - self.used, self.limits.model_length - len(self.ledger))

    def finish(self, why: Finish) -> None:
        """Say why the trajectory is over."""
        self.trajectory.finish = why
        self.done = True

    def begin(self) -> None:
        """Write the prompt. Raises UserError when it is too long and `truncation` is error."""
        self.trajectory.messages = self.chat.see(self.trajectory.row.prompt)
        media = media_of(self.trajectory.messages)
        if len(media) > self.limits.images:
            uid = self.trajectory.row.uid
            raise UserError(f"{uid} has {plural(len(media), 'image')}; raise rollout.limit_images, or leave it out")
        ids = self.chat.prompt(self.trajectory.messages, self.schemas)
        ids = truncate(ids, self.limits.prompt_length, "error" if media else self.limits.truncation)
        self._new_ledger(ids, media)

    async def generate(self) -> Reply:
        """Let the model take a turn; sets `done` when it used up its length or its turns."""
        turn = self.trajectory.turns
        drawn: list[int] = []
        lead = self.ledger.ids[-LEAD:]
        with self.span("generate"):
            generation = await self._draw(turn, drawn)
            while generation.finish_reason == "abort" and self.room > 0:
                generation = await self._draw(turn, drawn)
        reply = self.chat.parse(drawn, self.schemas, lead=lead)
        self.trajectory.messages.append(reply.message)
        self.trajectory.turns += 1
        if self.on_turn is not None:
            await self.on_turn.run((self.trajectory,), {}, timeout=None)
        if not reply.closed and not self.done:
            self.finish("length")
        return reply

    def observe(self, messages: list[Message], *, closed: bool) -> None:
        """Show the model new messages; ends the trajectory when no room for an answer is left."""
        try:
            messages = self.chat.see(messages)
        except UserError as error:  # a tool gave this picture, not the data
            raise InfraError(str(error)) from error
        history = list(self.trajectory.messages)
        self.trajectory.messages.extend(messages)
        if self.inference_template:
            self._rerender()
            return
        last = self.ledger.ids[-1]
        segments = self.chat.observation(messages, closed=closed, tools=self.schemas, last=last, history=history)
        self._append(segments, media_of(messages))

    @contextmanager
    def span(self, kind: SpanKind) -> Iterator[None]:
        """Time a stretch of the trajectory's life, apart from the wait for its turn."""
        start = time.time()
        with listening() as heard:
            yield
        began = min(heard, default=start)
        if began - start < SHORTEST_WAIT:
            began = start
        else:
            self.trajectory.spans.append(Span("wait", start, began))
        self.trajectory.spans.append(Span(kind, began, time.time()))

    async def _draw(self, turn: int, drawn: list[int]) -> Generation:
        key = self.trajectory.key
        sampling = replace(
            self.sampling,
            max_new_tokens=min(self.sampling.max_new_tokens, self.room),
            seed=seed_for(self.sampling.seed, key, turn, len(drawn)),
            stop_token_ids=self.chat.stop_token_ids,
        )
        hot = sampling.candidates > 0 and not self.used
        asked = replace(sampling, max_new_tokens=1) if hot else replace(sampling, candidates=0)
        generation = await self.engine.generate(self.ledger.ids.copy(), asked, key=key, media=self.ledger.media)
        generation = self._without_media_tokens(redraw_first_token(generation, sampling) if hot else generation)
        version = generation.versions or generation.weight_version
        self.ledger.append_model(generation.token_ids, generation.logprobs, turn=turn, version=version)
        self.used += len(generation.token_ids)
        drawn.extend(generation.token_ids)
        return generation

    def _without_media_tokens(self, generation: Generation) -> Generation:
        """The model's mistake, and not the infrastructure's: it is scored by what it wrote before."""
        n = self.chat.processor.legible(generation.token_ids)
        if n == len(generation.token_ids):
            return generation
        self.finish("max_errors")
        self.trajectory.outcome = Outcome.MODEL_ERROR
        self.trajectory.error = "the model wrote the token that stands for an image"
        kept = {name: getattr(generation, name)[:n] for name in ("token_ids", "logprobs", "versions")}
        return replace(generation, **kept, finish_reason="stop")

    def _rerender(self) -> None:
        """Show the model what the template shows at inference, in a new sample where that rewrites history."""
        step = self.chat.continuation(self.ledger.ids, self.trajectory.messages, self.schemas, self.memory)
        media = media_of(self.trajectory.messages)
        if isinstance(step, Split):
            self._split(step.ids, media)
        else:
            self._append(step.segments, media[len(self.ledger.media) :])

    def _append(self, segments: Sequence[Segment], media: Sequence[Medium]) -> None:
        """Write an observation, or end the trajectory where it leaves no room for an answer."""
        full = len(self.ledger.media) + len(media) > self.limits.images
        if full or sum(len(ids) for _, ids in segments) >= self.room:
            self.finish("length")
            return
        self.chat.processor.check([token for _, ids in segments for token in ids], media)
        self.ledger.media.extend(media)
        for source, ids in segments:
            self.ledger.append_observation(ids, source, turn=self.trajectory.turns - 1)
            self.used += len(ids)

    def _split(self, ids: list[int], media: Sequence[Medium]) -> None:
        if self.used >= self.limits.response_length or len(ids) >= self.limits.model_length:
            self.finish("length")
            return
        self._new_ledger(ids, media)

    def _new_ledger(self, ids: list[int], media: Sequence[Medium]) -> None:
        self.chat.processor.check(ids, media)
        ledger = Ledger()
        ledger.append_prompt(ids, media)
        self.trajectory.ledgers.append(ledger)
