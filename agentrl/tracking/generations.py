"""Some conversations of a validation as a table, for loggers that have tables."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentrl.tracking.dumps.text import Decode
from agentrl.trajectory.trajectory import Trajectory


class Generation(NamedTuple):
    """One line of the table."""

    step: int
    row: str
    prompt: str
    response: str
    """Everything after the prompt, tool replies included, with special tokens."""
    reward: float | None
    outcome: str


def generations(step: int, trajectories: Sequence[Trajectory], count: int, decode: Decode) -> Iterator[Generation]:
    """The first `count` trajectories: the same rows at every validation, so that they can be compared."""
    for each in trajectories[:count]:
        ledgers = each.ledgers
        prompt = decode(ledgers[0].ids[: ledgers[0].prompt_length]) if ledgers else ""
        response = "\n\n".join(decode(ledger.ids[ledger.prompt_length :]) for ledger in ledgers)
        yield Generation(step, each.row.uid, prompt, response, each.reward, each.outcome.value)
