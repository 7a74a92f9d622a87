"""Pack trajectories into a batch, and place their rewards.

Reward placement: a trajectory's reward is on the last model token of its last trained ledger, and a side's on that of
the side's last; a turn's reward is on the last model token of that turn, in the ledger that trains it. No reward is on
a token with mask 0, where some estimators would lose it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from math import fsum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.batches.batch import Batch, bounds_of
from agentrl.training.batches.media import Media
from agentrl.trajectory.column import Column
from agentrl.trajectory.ledger import TEACHER_COLUMNS, Ledger
from agentrl.trajectory.trajectory import Outcome, Trajectory

Spot = tuple[int, int]
"""(ledger, token within it)"""


def pack(trajectories: Sequence[Trajectory], *, tool_turn_weight: float, interaction_turn_weight: float) -> Batch:
    """Pack the trainable trajectories with their rewards; `Batch.trajectory` has indices of the whole list.

    `tool_turn_weight` and `interaction_turn_weight` scale turn rewards by their source. Ledgers without a model token
    are left out. Without a trainable trajectory the batch has 0 sequences.
    """
    return place_rewards(
        pack_tokens(trajectories),
        trajectories,
        tool_turn_weight=tool_turn_weight,
        interaction_turn_weight=interaction_turn_weight,
    )


def pack_tokens(trajectories: Sequence[Trajectory], version: int | None = None) -> Batch:
    """Pack all trajectories without an infra error, scored or not, with rewards of 0.

    `version`: of the policy that is trained, where older ones may have drawn tokens; sets `Batch.stale`.
    """
    ledgers: list[Ledger] = []
    owners: list[int] = []
    groups: list[int] = []
    numbers: dict[str, int] = {}
    for i, trajectory in enumerate(trajectories):
        kept = [] if trajectory.outcome is Outcome.INFRA_ERROR else _trained_ledgers(trajectory)
        ledgers += kept
        owners += [i] * len(kept)
        groups += [numbers.setdefault(trajectory.row.uid, len(numbers))] * len(kept)
    batch = pack_ledgers(ledgers, trajectory=owners, group=groups)
    if version is not None:
        batch.stale = batch.mask & (_joined((ledger.versions for ledger in ledgers), np.int64) != version)
    if any(trajectory.side_rewards for trajectory in trajectories):
        batch.side = torch.tensor([ledger.side for ledger in ledgers], dtype=torch.long)
    keys = [_number(trajectories[i], ledger) for i, ledger in zip(owners, ledgers, strict=True)]
    batch.key = torch.tensor(keys, dtype=torch.long)
    batch.truncated = torch.tensor([trajectories[i].finish == "length" for i in owners], dtype=torch.bool)
    return batch


def place_rewards(
    batch: Batch, trajectories: Sequence[Trajectory], *, tool_turn_weight: float, interaction_turn_weight: float
) -> Batch:
    """The batch that `trajectories` were packed into, with their rewards; unscored ones are left out."""
    weights = _weights(tool_turn_weight, interaction_turn_weight)
    owners = batch.trajectory.tolist()
    kept = [sequence for sequence, owner in enumerate(owners) if trajectories[owner].trainable]
    if len(kept) < len(owners):
        batch = batch.select(kept)
        batch.group = batch.group.unique(return_inverse=True)[1]
    placed, bounds = defaultdict[int, float](float), batch.cu_seqlens.tolist()
    for owner, sequences in groupby(range(batch.num_sequences), key=batch.trajectory.tolist().__getitem__):
        first = next(sequences)
        for (ledger, token), reward in _rewards(trajectories[owner], weights):
            placed[bounds[first + ledger] + token] += reward
    rewards = torch.zeros(batch.num_tokens)
    rewards[list(placed)] = torch.tensor(list(placed.values()))
    return replace(batch, rewards=rewards.to(batch.ids.device))


def total_reward(trajectory: Trajectory, *, tool_turn_weight: float, interaction_turn_weight: float) -> float:
    """The sum of all rewards of a scored trajectory, as placed on its tokens; of several sides those of the first."""
    weights = _weights(tool_turn_weight, interaction_turn_weight)
    turns = trajectory.turn_rewards
    if trajectory.side_rewards:
        first = min(ledger.side for ledger in trajectory.ledgers)
        mine = {turn for ledger in trajectory.ledgers if ledger.side == first for turn in ledger.turn_ends()}
        turns = [turn for turn in turns if turn.turn in mine]
    return fsum([trajectory.reward or 0.0, *(weights[turn.source] * turn.value for turn in turns)])


def _weights(tool_turn_weight: float, interaction_turn_weight: float) -> dict[str, float]:
    """Factors of turn rewards by their source; those of an environment are the reward itself."""
    return {"tool": tool_turn_weight, "interaction": interaction_turn_weight, "environment": 1.0}


def _number(trajectory: Trajectory, ledger: Ledger) -> int:
    """A number of a ledger that any process finds, and no other ledger of a run has."""
    index = next(i for i, other in enumerate(trajectory.ledgers) if other is ledger)
    digest = blake2b(f"{trajectory.key}#{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _trained_ledgers(trajectory: Trajectory) -> list[Ledger]:
    return [ledger for ledger in trajectory.ledgers if ledger.model_tokens]


def pack_ledgers(
    ledgers: Sequence[Ledger],
    *,
    trajectory: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
) -> Batch:
    """Pack ledgers as they are, rewards 0. `trajectory`, `group`: one per ledger; None: its index."""
    lengths = [len(ledger) for ledger in ledgers]
    own = list(range(len(ledgers)))
    return Batch(
        ids=_joined((ledger.ids for ledger in ledgers), np.int64),
        mask=_joined((ledger.mask for ledger in ledgers), np.bool_),
        rollout_logprobs=_joined((ledger.logprobs for ledger in ledgers), np.float32),
        rewards=torch.zeros(sum(lengths)),
        cu_seqlens=bounds_of(lengths),
        trajectory=torch.tensor(own if trajectory is None else trajectory, dtype=torch.long),
        group=torch.tensor(own if group is None else group, dtype=torch.long),
        media=Media.of([ledger.media for ledger in ledgers]),
        experts=_experts(ledgers),
        **_teacher_columns(ledgers),
    )


def _teacher_columns(ledgers: Sequence[Ledger]) -> dict[str, Tensor]:
    """The columns about the ledgers' teachers; none where no ledger has a teacher."""
    if not any(ledger.teacher >= 0 for ledger in ledgers):
        return {}
    found = {"teacher": torch.tensor([ledger.teacher for ledger in ledgers])}
    if any(ledger.teacher_prompt for ledger in ledgers):
        # One without a prompt of its own reads all tokens.
        pairs = [(len(told) and ledger.prompt_length, told) for ledger in ledgers for told in [ledger.teacher_prompt]]
        prompts = [torch.tensor([replaced, *told]) for replaced, told in pairs]
        found["teacher_prompts"] = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=-1)
    for name in TEACHER_COLUMNS:
        columns = [getattr(ledger, name) for ledger in ledgers]
        known = next((column for column in columns if column is not None), None)
        if known is not None:
            none = np.nan if known.dtype.kind == "f" else 0
            shapes = [(len(ledger), *known.shape[1:]) for ledger in ledgers]
            each = zip(columns, shapes, strict=True)
            whole = [np.full(shape, none, known.dtype) if column is None else column for column, shape in each]
            found[name] = torch.from_numpy(np.concatenate(whole))
    return found


def _experts(ledgers: Sequence[Ledger]) -> Tensor | None:
    """The experts of all tokens, as far as they are known; None where no ledger has any."""
    known = next((rows for ledger in ledgers for rows in ledger.experts), None)
    if known is None:
        return None
    parts = [rows for ledger in ledgers for rows in (*ledger.experts, ledger.unknown_experts(known))]
    return torch.from_numpy(np.concatenate(parts))


def _joined(columns: Iterable[Column[Any]], dtype: Any) -> Tensor:
    """The columns one after the other."""
    parts = [column.numpy() for column in columns]
    return torch.from_numpy(np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.empty(0, dtype))


def _rewards(trajectory: Trajectory, weights: dict[str, float]) -> list[tuple[Spot, float]]:
    """The rewards of a trainable trajectory, each with its spot in the trained ledgers."""
    ledgers = _trained_ledgers(trajectory)
    ends = _turn_ends(ledgers)
    turns = [(_spot(ends, turn.turn), weights[turn.source] * turn.value) for turn in trajectory.turn_rewards]
    return [*_final_rewards(trajectory, ledgers, ends), *turns]


def _final_rewards(
    trajectory: Trajectory, ledgers: list[Ledger], ends: dict[int, Spot]
) -> Iterator[tuple[Spot, float]]:
    """The final reward on the last turn; where the policy plays several sides, each side's on its own last turn."""
    if not trajectory.side_rewards:
        yield ends[max(ends)], trajectory.reward or 0.0
    for side, reward in enumerate(trajectory.side_rewards):
        turns = [turn for turn, (ledger, _) in ends.items() if ledgers[ledger].side == side]
        if turns:
            yield ends[max(turns)], reward + trajectory.length_penalty


def _turn_ends(ledgers: list[Ledger]) -> dict[int, Spot]:
    """The last model token of each turn; a later ledger overrides."""
    return {turn: (i, token) for i, ledger in enumerate(ledgers) for turn, token in ledger.turn_ends().items()}


def _spot(ends: dict[int, Spot], turn: int) -> Spot:
    """The turn's last model token; for an untrained turn that of the nearest earlier turn, else of the first."""
    if turn in ends:
        return ends[turn]
    earlier = [t for t in ends if t < turn]
    return ends[max(earlier) if earlier else min(ends)]


def advantages_by_key(trajectories: Sequence[Trajectory], batch: Batch) -> dict[str, list[NDArray[np.float32]]]:
    """Trajectory key -> advantages of each ledger; an empty array for a ledger that `pack` left out.

    `batch`: packed from some or all `trajectories`, with advantages.
    """
    assert batch.advantages is not None
    columns: dict[int, list[NDArray[np.float32]]] = defaultdict(list)
    for i, column in zip(batch.trajectory.tolist(), batch.advantages.cpu().split(batch.lengths), strict=True):
        columns[i].append(column.numpy())
    return {trajectories[i].key: _of_ledgers(trajectories[i].ledgers, own) for i, own in columns.items()}


def _of_ledgers(ledgers: Sequence[Ledger], columns: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    trained, none = iter(columns), np.empty(0, np.float32)
    return [next(trained) if ledger.model_tokens else none for ledger in ledgers]
