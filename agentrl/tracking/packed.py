"""Trajectories on their way into a dump: ready text, and token columns in arrays, which cost little to send.

Invariant: what users put into a trajectory is text here already, so that another process needs none of their classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.json_text import to_json
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.trajectory import Trajectory

Record = dict[str, Any]
Values = Sequence[float] | NDArray[Any]
"""One value a token; empty for a ledger that was not trained on."""

COMPACT: dict[str, Any] = {"separators": (",", ":")}
CHUNK = 65_536
"""Tokens after which a chunk ends."""


@dataclass(frozen=True)
class TokenColumns:
    """A ledger's columns and advantages, [T] each."""

    prompt_length: int
    ids: NDArray[np.int32]
    mask: NDArray[np.int8]
    logprobs: NDArray[np.float64]
    sources: NDArray[np.int8]
    turns: NDArray[np.int32]
    versions: NDArray[np.int32]
    advantages: NDArray[Any]
    """Empty for a ledger that was not trained on."""


@dataclass(frozen=True)
class PackedTrajectory:
    """One line of a dump, its tokens not yet decoded."""

    head: str
    """The record without its samples, as JSON."""
    samples: list[TokenColumns]


def packed(step: int, trajectory: Trajectory, advantages: Sequence[Values] = ()) -> PackedTrajectory:
    """A trajectory as a dump needs it. `advantages`: one entry a ledger, or none at all."""
    head = to_json(trajectory_head(step, trajectory), _plain, **COMPACT)
    return PackedTrajectory(head, token_columns(trajectory, advantages))


def chunks(trajectories: Iterable[PackedTrajectory]) -> Iterator[list[PackedTrajectory]]:
    """The trajectories in lists of about `CHUNK` tokens, made one at a time."""
    chunk, tokens = list[PackedTrajectory](), 0
    for trajectory in trajectories:
        chunk.append(trajectory)
        tokens += sum(len(sample.ids) for sample in trajectory.samples)
        if tokens >= CHUNK:
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk


def trajectory_head(step: int, trajectory: Trajectory) -> Record:
    """Everything of a record but its samples: first what a person asks for."""
    row = trajectory.row
    return {
        "step": step,
        "key": trajectory.key,
        "uid": row.uid,
        "sample": trajectory.sample,
        "data_source": row.data_source,
        "reward": trajectory.reward,
        "reward_extra": trajectory.reward_extra,
        "outcome": trajectory.outcome.value,
        "finish": trajectory.finish,
        "error": trajectory.error,
        "turns": trajectory.turns,
        "user_turns": trajectory.user_turns,
        **_sides(trajectory),
        "turn_rewards": [vars(reward) for reward in trajectory.turn_rewards],
        "tool_rewards": trajectory.tool_rewards,
        "interaction_score": trajectory.interaction_score,
        "ground_truth": row.ground_truth,
        "prompt": trajectory.messages[: len(row.prompt)] or row.prompt,  # its images as thumbnails
        "messages": trajectory.messages,
        "tool_calls": [vars(call) for call in trajectory.tool_calls],
        "spans": [vars(span) for span in trajectory.spans],
        "extra": trajectory.extra,
    }


def _sides(trajectory: Trajectory) -> Record:
    """Of a game that the policy plays several sides of: the side of each sample, and the final reward of each side."""
    if not trajectory.side_rewards:
        return {}
    return {"sides": [ledger.side for ledger in trajectory.ledgers], "side_rewards": trajectory.side_rewards}


def token_columns(trajectory: Trajectory, advantages: Sequence[Values] = ()) -> list[TokenColumns]:
    """The columns of each ledger."""
    return [
        _columns(ledger, advantages[i] if i < len(advantages) else ()) for i, ledger in enumerate(trajectory.ledgers)
    ]


def _columns(ledger: Ledger, advantages: Values) -> TokenColumns:
    return TokenColumns(
        ledger.prompt_length,
        ledger.ids.numpy(),
        ledger.mask.numpy(),
        ledger.logprobs.numpy(),
        ledger.sources.numpy(),
        ledger.turns.numpy(),
        ledger.versions.numpy(),
        np.asarray(advantages),
    )


def _plain(value: Any) -> Any:
    """Users put what they like into rows, rewards and messages: arrays become lists, strangers their repr."""
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Medium):
        return value.thumbnail()
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value.tolist() if hasattr(value, "tolist") else repr(value)
