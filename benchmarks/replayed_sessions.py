"""Replays recorded sessions of a coding agent on a real engine: an agent loop for stragglers_gpu.py.

A session is reduced: every n-th turn, tokens and waits times a factor, waits and tokens of a turn capped before. The
model's tokens are its own, of exactly the recorded number; between two turns the loop sleeps as a tool would.
"""

import asyncio
import gzip
import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentrl.engines.engine import Sampling
from agentrl.rollout.episode import recorded
from agentrl.rollout.loops import AgentLoop
from agentrl.rollout.seeds import seed_for
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.trajectory import Trajectory

Turns = list[tuple[float, int]]
"""(seconds waited before the turn, tokens sampled in it)."""
LONGEST_WAIT, MOST_TOKENS, MOST_TURNS = 120.0, 3663, 100
"""Of a recorded session: seconds, tokens of a turn (its 99th percentile), turns."""
REPLY = 8
"""Tokens of what a tool returns."""


@dataclass
class Sessions:
    """Those that are replayed, and the tokens of each trajectory that was begun, by key."""

    all: list[Turns] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)

    def read(self, path: Path, *, every: int, tokens: float, seconds: float) -> None:
        """Take the sessions of a file, reduced by these factors."""
        with gzip.open(path, "rt") as stream:
            recorded = [json.loads(line)["turns"][:MOST_TURNS:every] for line in stream]
        self.all = [[reduced(turn[2], turn[1], seconds, tokens) for turn in turns] for turns in recorded]

    def of(self, key: str) -> Turns:
        """The session of a trajectory, always the same."""
        return random.Random(key).choice(self.all)

    def longest(self) -> int:
        """Tokens after the prompt."""
        return max(length(turns) + REPLY * len(turns) for turns in self.all)


def reduced(wait: float, tokens: float, seconds: float, share: float) -> tuple[float, int]:
    """A turn in the replay."""
    return min(wait, LONGEST_WAIT) * seconds, max(1, round(min(tokens, MOST_TOKENS) * share))


def length(turns: Turns) -> int:
    """Tokens that the model draws."""
    return sum(tokens for _, tokens in turns)


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
        for wait, tokens in turns:
            await self._turn(trajectory, ledger, wait, replace(sampling, max_new_tokens=tokens, ignore_eos=True))

    async def _turn(self, trajectory: Trajectory, ledger: Ledger, wait: float, sampling: Sampling) -> None:
        turn, key = trajectory.turns, trajectory.key
        if turn:
            with recorded(trajectory, "tool"):
                await asyncio.sleep(wait)
            ledger.append_observation(ledger.ids[:REPLY], Source.TOOL, turn=turn)
        seeded = replace(sampling, seed=seed_for(sampling.seed, key, turn, 0))
        with recorded(trajectory, "generate"):
            got = await self.env.engine.generate(ledger.ids.copy(), seeded, key=key)
        version = got.versions or got.weight_version
        ledger.append_model(got.token_ids, got.logprobs, turn=turn, version=version)
        trajectory.turns += 1
