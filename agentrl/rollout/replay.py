"""Replays a stored conversation: the model's first turns are those of the record, then today's policy goes on.

The agent loop runs as always, with an engine that answers the first turns from the record: the calls in them are
carried out again, so tools, containers and games come to the state that they had. Nothing else could restore it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from agentrl.core.errors import UserError, plural
from agentrl.engines.engine import Engine, Generation, Sampling
from agentrl.rollout.pausable_engine import EngineWrapper
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.scheduler import Scheduler
from agentrl.tracking.dumps.records import Record, stored_turns
from agentrl.trajectory.medium import Medium

Turns = Sequence[Sequence[tuple[int, float]]]
"""Tokens of each turn, with their log-probs."""


class ReplayEngine(EngineWrapper):
    """Answers the first requests of each trajectory with stored turns; another engine answers the others."""

    def __init__(self, engine: Engine, turns: Turns) -> None:
        super().__init__(engine)
        self.turns = turns
        self._requests = Counter[str]()

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """The next turn of the trajectory `key`."""
        turn, self._requests[key] = self._requests[key], self._requests[key] + 1
        if turn >= len(self.turns):
            return await self.engine.generate(token_ids, sampling, key=key, media=media)
        stored = self.turns[turn][: sampling.max_new_tokens]
        whole = len(stored) == len(self.turns[turn])
        return Generation([t for t, _ in stored], [p for _, p in stored], "stop" if whole else "length", 0)


def replay(rollouts: Rollouts, record: Record, from_turn: int) -> None:
    """Have the trajectories of `rollouts` begin with the turns of a dumped one before `from_turn`, counted from 1.

    Raises UserError where it has fewer, or was made with another tokenizer.
    """
    turns, scheduler = stored_turns(record), rollouts.scheduler
    if from_turn > len(turns) + 1:
        raise UserError(f"--from-turn {from_turn}: {record['key']} has {plural(len(turns), 'turn')}")
    for sample in record["samples"]:
        if rollouts.decode(sample["columns"]["ids"]) != "".join(segment["text"] for segment in sample["segments"]):
            raise UserError(f"{record['key']} was made with another tokenizer: its tokens cannot be replayed")
    assert isinstance(scheduler, Scheduler)
    scheduler.env = replace(scheduler.env, engine=ReplayEngine(scheduler.env.engine, turns[: from_turn - 1]))
    scheduler.retries = 0  # a second try of a trajectory would find its stored turns used up
