"""Pack trajectories into a batch, and place their rewards.

Reward placement: a trajectory's reward is on the last model token of its last trained ledger, and a side's on that of
the side's last; a turn's reward is on the last model token of that turn, in the ledger that trains it. No reward is on
a token with mask 0, where some estimators would lose it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.config.schema import Reward
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.media import Media
from agentrl.training.batches.sources import Source, Sources
from agentrl.trajectory.column import Column
from agentrl.trajectory.ledger import TEACHER_COLUMNS, Ledger
from agentrl.trajectory.outline import LedgerOutline, Lines
from agentrl.trajectory.store import Body, Store, Stored
from agentrl.trajectory.trajectory import Outcome, Trajectory

Values = NDArray[np.float32] | Lines
Spot = tuple[int, int]
"""(ledger, token within it)"""


def pack(trajectories: Sequence[Trajectory], *, tool_turn_weight: float, interaction_turn_weight: float) -> Batch:
    """Pack the trainable trajectories with their rewards; `Batch.trajectory` has indices of the whole list.

    `tool_turn_weight` and `interaction_turn_weight` scale turn rewards by their source.
    """
    reward = Reward(tool_turn_weight=tool_turn_weight, interaction_turn_weight=interaction_turn_weight)
    return place_rewards(pack_tokens(trajectories), trajectories, reward.turn_weights)


def pack_tokens(trajectories: Sequence[Trajectory], version: int | None = None, *, sides: bool = False) -> Batch:
    """Pack all trajectories without an infra error, scored or not, with rewards of 0. Ledgers without a model token are
    left out; `Batch.trajectory` has indices of the whole list.

    `version`: of the policy that is trained, where older ones may have drawn tokens; sets `Batch.stale`. `sides`:
    whether each side is of another policy, so that `Batch.side` is there before the sides have rewards.
    """
    sequences = _sequences(trajectories)
    batch = pack_ledgers([trajectories[i].ledgers[j] for i, j in sequences], version)
    return _owned(batch, trajectories, sequences, sides=sides)


def pack_lines(trajectories: Sequence[Trajectory], version: int | None, store: Store, *, sides: bool = False) -> Batch:
    """`pack_tokens` as lines, without the tokens: these stay in `store`, or go there."""
    sequences = _sequences(trajectories)
    bodies = {i: _body(trajectories[i], store) for i in dict.fromkeys(i for i, _ in sequences)}
    own = [trajectories[i].outlines[j] for i, j in sequences]
    outlines = [LedgerOutline.of(each) if isinstance(each, Ledger) else each for each in own]
    places = zip(sequences, outlines, strict=True)
    counts = torch.tensor([count for outline in outlines for count in outline.counts], dtype=torch.long)
    batch = Batch.of(
        torch.zeros_like(counts),
        torch.tensor([made for outline in outlines for made in outline.mask], dtype=torch.bool),
        [len(outline.counts) for outline in outlines],
        counts=counts,
        sources=Sources(tuple(Source(bodies[i], j, outline) for (i, j), outline in places), version),
    )
    return _owned(batch, trajectories, sequences, sides=sides)


def _sequences(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """(trajectory, ledger of it) of each sequence that can be trained on."""
    sound = [(i, t) for i, t in enumerate(trajectories) if t.outcome is not Outcome.INFRA_ERROR]
    return [(i, j) for i, t in sound for j, ledger in enumerate(t.outlines) if ledger.model_tokens]


def _owned(batch: Batch, trajectories: Sequence[Trajectory], sequences: list[tuple[int, int]], *, sides: bool) -> Batch:
    """The batch with the columns that tell what its sequences belong to."""
    owners, numbers = [trajectories[i] for i, _ in sequences], dict[str, int]()
    batch.trajectory = torch.tensor([i for i, _ in sequences], dtype=torch.long)
    groups = [numbers.setdefault(owner.row.uid, len(numbers)) for owner in owners]
    batch.group = torch.tensor(groups, dtype=torch.long)
    if sides or any(trajectory.side_rewards for trajectory in trajectories):
        batch.side = torch.tensor([trajectories[i].outlines[j].side for i, j in sequences], dtype=torch.long)
    teachers = [trajectories[i].outlines[j].teacher for i, j in sequences]
    if max(teachers, default=-1) >= 0:
        batch.teacher = torch.tensor(teachers)
    keys = [_number(trajectories[i], j) for i, j in sequences]
    batch.key = torch.tensor(keys, dtype=torch.long)
    batch.truncated = torch.tensor([owner.finish == "length" for owner in owners], dtype=torch.bool)
    return batch


def _body(trajectory: Trajectory, store: Store) -> Any:
    """The reference of a trajectory's tokens."""
    if isinstance(trajectory, Stored):
        return trajectory.outline.body
    return store.put(Body.of(trajectory, texts=False))


def place_rewards(batch: Batch, trajectories: Sequence[Trajectory], turn_weights: Mapping[str, float]) -> Batch:
    """The batch that `trajectories` were packed into, with their rewards; unscored ones are left out. `turn_weights`:
    factors of turn rewards by their source. Without a trainable trajectory the batch has 0 sequences."""
    owners = batch.trajectory.tolist()
    kept = [sequence for sequence, owner in enumerate(owners) if trajectories[owner].trainable]
    if len(kept) < len(owners):
        batch = batch.select(kept)
        batch.group = batch.group.unique(return_inverse=True)[1]
    placed, bounds = defaultdict[int, float](float), [0, *accumulate(batch.token_lengths)]
    for owner, sequences in groupby(range(batch.num_sequences), key=batch.trajectory.tolist().__getitem__):
        first = next(sequences)
        for (ledger, token), reward in _rewards(trajectories[owner], turn_weights):
            placed[bounds[first + ledger] + token] += reward
    rewards, spots = torch.zeros(batch.num_tokens), torch.tensor([*placed], dtype=torch.long)
    if batch.counts is not None:
        spots = torch.searchsorted(batch.counts.cumsum(0), spots, right=True)
    rewards[spots] = torch.tensor([*placed.values()])
    return replace(batch, rewards=rewards.to(batch.ids.device))


def total_rewards(trajectory: Trajectory, turn_weights: Mapping[str, float]) -> list[float]:
    """The sum of all rewards of each side of a scored trajectory, as placed on its tokens; without sides one sum."""
    several = trajectory.side_rewards
    totals = [reward + trajectory.length_penalty for reward in several] or [trajectory.reward or 0.0]
    sides = {turn: ledger.side for ledger in trajectory.outlines for turn in ledger.turn_ends if several}
    for turn in trajectory.turn_rewards:
        totals[sides.get(turn.turn, 0)] += turn_weights[turn.source] * turn.value
    return totals


def _number(trajectory: Trajectory, index: int) -> int:
    """A number of a ledger that any process finds, and no other ledger of a run has."""
    digest = blake2b(f"{trajectory.key}#{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def pack_ledgers(ledgers: Sequence[Ledger], version: int | None = None, *, group: Sequence[int] | None = None) -> Batch:
    """Pack ledgers as they are, rewards 0, each a trajectory. `version`: as in `pack_tokens`. `group`: one per ledger;
    None: its index."""
    lengths = [len(ledger) for ledger in ledgers]
    batch = Batch.of(
        _joined((ledger.ids for ledger in ledgers), np.int64),
        _joined((ledger.mask for ledger in ledgers), np.bool_),
        lengths,
        rollout_logprobs=_joined((ledger.logprobs for ledger in ledgers), np.float32),
        **({} if group is None else {"group": torch.tensor(group, dtype=torch.long)}),
        media=Media.of([ledger.media for ledger in ledgers]),
        experts=_experts(ledgers),
        **_teacher_columns(ledgers),
    )
    if version is not None:
        batch.stale = batch.mask & (_joined((ledger.versions for ledger in ledgers), np.int64) != version)
    return batch


def _teacher_columns(ledgers: Sequence[Ledger]) -> dict[str, Any]:
    """The columns about the ledgers' teachers; none where no ledger has a teacher."""
    if not any(ledger.teacher >= 0 for ledger in ledgers):
        return {}
    found = {"teacher": torch.tensor([ledger.teacher for ledger in ledgers])}
    if any(ledger.teacher_prompt for ledger in ledgers):
        # One without a prompt of its own reads all tokens.
        replaced = [ledger.prompt_length if ledger.teacher_prompt else 0 for ledger in ledgers]
        prompts = [torch.tensor([n, *each.teacher_prompt]) for n, each in zip(replaced, ledgers, strict=True)]
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


def _rewards(trajectory: Trajectory, weights: Mapping[str, float]) -> list[tuple[Spot, float]]:
    """The rewards of a trainable trajectory, each with its spot in the trained ledgers."""
    ledgers = [ledger for ledger in trajectory.outlines if ledger.model_tokens]
    # The last model token of each turn; a later ledger overrides.
    ends = {turn: (i, token) for i, ledger in enumerate(ledgers) for turn, token in ledger.turn_ends.items()}
    turns = [(_spot(ends, turn.turn), weights[turn.source] * turn.value) for turn in trajectory.turn_rewards]
    return [*_final_rewards(trajectory, ledgers, ends), *turns]


def _final_rewards(
    trajectory: Trajectory, ledgers: Sequence[Ledger | LedgerOutline], ends: dict[int, Spot]
) -> Iterator[tuple[Spot, float]]:
    """The final reward on the last turn; where the policy plays several sides, each side's on its own last turn."""
    if not trajectory.side_rewards:
        yield ends[max(ends)], trajectory.reward or 0.0
    for side, reward in enumerate(trajectory.side_rewards):
        turns = [turn for turn, (ledger, _) in ends.items() if ledgers[ledger].side == side]
        if turns:
            yield ends[max(turns)], reward + trajectory.length_penalty


def _spot(ends: dict[int, Spot], turn: int) -> Spot:
    """The turn's last model token; for an untrained turn that of the nearest earlier turn, else of the first."""
    if turn in ends:
        return ends[turn]
    earlier = [t for t in ends if t < turn]
    return ends[max(earlier) if earlier else min(ends)]


def advantages_by_key(trajectories: Sequence[Trajectory], batch: Batch) -> dict[str, list[Values]]:
    """Trajectory key -> advantages of each ledger; an empty array for a ledger that `pack` left out.

    `batch`: packed from some or all `trajectories`, with advantages.
    """
    columns: dict[int, list[Values]] = defaultdict(list)
    both = batch.column("advantages"), batch.counts
    parts = [column.cpu().split(batch.lengths) for column in both if column is not None]
    for i, *own in zip(batch.trajectory.tolist(), *parts, strict=True):
        columns[i].append(own[0].numpy() if batch.counts is None else Lines(*own))
    return {trajectories[i].key: _of_ledgers(trajectories[i].outlines, own) for i, own in columns.items()}


def _of_ledgers(ledgers: Sequence[Ledger | LedgerOutline], columns: Sequence[Values]) -> list[Values]:
    trained, none = iter(columns), np.empty(0, np.float32)
    return [next(trained) if ledger.model_tokens else none for ledger in ledgers]
