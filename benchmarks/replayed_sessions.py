"""Replays recorded sessions of a coding agent on a real engine: an agent loop for stragglers_gpu.py.

A session is reduced: every n-th turn, tokens and waits times a factor, waits and tokens of a turn capped before. The
model's tokens are its own, of exactly the recorded number; between two turns the loop sleeps as a tool would, and
returns as many tokens as were added to the recorded context.
"""

import asyncio
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from agentrl.engines.engine import Sampling
from agentrl.rollout.episode import recorded, seed_for
from agentrl.rollout.loops import AgentLoop
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.trajectory import Trajectory

LONGEST_WAIT, MOST_TOKENS, MOST_REPLY, MOST_TURNS = 120.0, 3663, 5480, 100
"""Of a recorded session: seconds, tokens of a turn (99th percentile), of a tool's answer (95th percentile), turns."""
VOCABULARY = 200
"""Tokens that tools' answers consist of."""


class Turn(NamedTuple):
    """A tool's answer, and the model's after it."""

    wait: float
    """Seconds before it."""
    reply: int
    """Tokens of what the tool returns."""
    tokens: int
    """That the model samples."""


Turns = list[Turn]


@dataclass
class Sessions:
    """Those that are replayed, and the tokens of each trajectory that was begun, by key."""

    all: list[Turns] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)

    def read(self, path: Path, *, every: int, tokens: float, seconds: float) -> None:
        """Take the sessions of a file, reduced by these factors."""
        with gzip.open(path, "rt") as stream:
            recorded = [json.loads(line)["turns"][:MOST_TURNS] for line in stream]
        self.all = [[reduced(turns, i, seconds, tokens) for i in range(0, len(turns), every)] for turns in recorded]

    def of(self, key: str) -> Turns:
        """The session of a trajectory, always the same."""
        return random.Random(key).choice(self.all)

    def longest(self) -> int:
        """Tokens after the prompt."""
        return max(length(turns) + sum(turn.reply for turn in turns) for turns in self.all)


def reduced(turns: Sequence[Sequence[float]], i: int, seconds: float, share: float) -> Turn:
    """Turn `i` of a recorded session in the replay; a turn is [context tokens, sampled tokens, seconds waited, ...]."""
    context, tokens, wait = turns[i][:3]
    added = context - sum(turns[i - 1][:2]) if i else 0.0
    reply = max(1, round(min(added, MOST_REPLY) * share))
    return Turn(min(wait, LONGEST_WAIT) * seconds, reply, max(1, round(min(tokens, MOST_TOKENS) * share)))


def length(turns: Turns) -> int:
    """Tokens that the model draws."""
    return sum(turn.tokens for turn in turns)


SESSIONS = Sessions()


class Replay(AgentLoop):
    """One session."""

    uses_tools = False

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        """Fill `trajectory`."""
        turns = SESSIONS.of(trajectory.key)
        SESSIONS.begun[trajectory.key] = length(turns)
        trajectory.templated = False
        trajectory.messages = self.env.chat.see(trajectory.row.prompt)
        ledger = Ledger()
        ledger.append_prompt(self.env.chat.prompt(trajectory.messages, []))
        trajectory.ledgers = [ledger]
        for replayed in turns:
            sampled = replace(sampling, max_new_tokens=replayed.tokens, ignore_eos=True)
            await self._turn(trajectory, ledger, replayed, sampled)

    async def _turn(self, trajectory: Trajectory, ledger: Ledger, replayed: Turn, sampling: Sampling) -> None:
        turn, key = trajectory.turns, trajectory.key
        if turn:
            with recorded(trajectory, "tool"):
                await asyncio.sleep(replayed.wait)
            answer = random.Random(f"{key}/{turn}").choices(range(VOCABULARY), k=replayed.reply)
            ledger.append_observation(answer, Source.TOOL, turn=turn)
        seeded = replace(sampling, seed=seed_for(sampling.seed, key, turn, 0))
        with recorded(trajectory, "generate"):
            got = await self.env.engine.generate(ledger.ids.copy(), seeded, key=key)
        version = got.versions or got.weight_version
        ledger.append_model(got.token_ids, got.logprobs, turn=turn, version=version)
        trajectory.turns += 1
