"""The losses of `agentrl serve` by their names in Tinker's protocol, and the checks of the data that they are given.

Invariant: a loss is a sum over tokens. Padding (weight 0, advantage 0) has no part in it and no gradient: whatever its
other columns have, the sum stays finite.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algorithms import bind_loss
from agentrl.algorithms.losses import PolicyLoss
from agentrl.core.errors import UserError
from agentrl.serve.contract import Datum
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.media import Media

TARGETS = "target_tokens"
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
LARGEST = 1e30  # number of a setting
CLIP = {LOW: 0.8, HIGH: 1.2}  # bounds of the ratio
NAMES = {"logprobs": "old_logprobs", "sequence_ratio_mask": "chosen"}  # columns with another name in a batch

# (log-probs f32 [T, K], batch) -> f32 [T] or [T, K], before the batch's `weights`
LossFunction = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss of the protocol: the project's name of it, the columns and settings (with defaults) that it reads. A token
    where all columns of `moved_by` are 0 is padding."""

    policy_loss: str | None = None
    columns: tuple[str, ...] = ("logprobs", "advantages")
    settings: Mapping[str, float] = field(default_factory=dict)
    moved_by: tuple[str, ...] = ("advantages",)


LOSSES = {
    "cross_entropy": Loss(columns=("weights",), moved_by=("weights",)),
    "importance_sampling": Loss("vanilla"),
    "ppo": Loss("vanilla", settings=CLIP),
    "cispo": Loss("cispo", settings=CLIP),
    "dro": Loss(settings={"beta": 0.05}, moved_by=("advantages", "logprobs")),
    "gspo": Loss("gspo", ("logprobs", "advantages", "sequence_ratio_mask"), CLIP),
}


def loss_of(name: str, settings: Mapping[str, float]) -> tuple[Loss, LossFunction]:
    """The loss of that name, and its function. Raises UserError."""
    if name not in LOSSES:
        hint = "; recipes whose default it is take loss_fn=importance_sampling" if name == "stable_reinforce" else ""
        raise UserError(f"the loss {name!r} is not served; use {', '.join(LOSSES)}{hint}")
    loss = LOSSES[name]
    given = {**loss.settings, **settings}
    if unknown := given.keys() - loss.settings:
        raise UserError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(loss.settings) or 'none'}")
    low, high = given.get(LOW, -inf), given.get(HIGH, inf)
    if not all(isinstance(v, int | float) and abs(v) < LARGEST for v in given.values()) or low > high:
        raise UserError(f"{name} cannot have {given}: send finite numbers, and {LOW} not above {HIGH}")
    if loss.policy_loss:
        return loss, partial(_policy_loss, bind_loss(loss.policy_loss, low=1 - low, high=high - 1, c=inf))
    return loss, partial(_dro, given["beta"]) if "beta" in given else _cross_entropy


def _cross_entropy(logprobs: Tensor, micro: Any) -> Tensor:
    return -logprobs


def _policy_loss(loss: PolicyLoss, logprobs: Tensor, micro: Any) -> Tensor:
    mask = micro.mask if micro.chosen is None else micro.chosen != 0
    return loss(logprobs[:, 0], micro.old_logprobs, micro.advantages, mask=mask, cu_seqlens=micro.cu_seqlens)[0]


def _dro(beta: float, logprobs: Tensor, micro: Any) -> Tensor:
    """Policy gradient with a squared distance to the sampler's log-probs (DRO, arXiv 2405.19107)."""
    return beta / 2 * (logprobs[:, 0] - micro.old_logprobs).square() - logprobs[:, 0] * micro.advantages


def pack_data(data: Sequence[Datum], loss: Loss, *, vocabulary: int, longest: int) -> Batch:
    """A batch of the data, on the CPU. A sequence has one token more than its datum: row i of the datum's columns
    belongs to token i + 1. Their indices begin at 1: 0 is that of a dummy batch.

    Raises UserError for data that do not fit the loss or the model."""
    rows = [_row(f"datum {i}:", datum, loss, vocabulary, longest) for i, datum in enumerate(data)]
    if not rows:
        raise UserError("there are no data; send at least one datum")
    width = max(row["targets"].shape[1] for row in rows)
    columns = {n: torch.cat([F.pad(row[n], (0, width - row[n].shape[1])) for row in rows]) for n in rows[0]}
    given: dict[str, Any] = {n: c if n in ("targets", "weights") else c[:, 0] for n, c in columns.items()}
    given = {"weights": columns["mask"].float(), "index": torch.arange(1, len(rows) + 1)} | given
    media = Media.of([datum.media for datum in data])
    return Batch.of(lengths=[len(row["ids"]) for row in rows], media=media, **given)


def _row(where: str, datum: Datum, loss: Loss, vocabulary: int, longest: int) -> dict[str, Tensor]:
    """The columns of a sequence in a batch: [N + 1, 1], and targets and weights [N + 1, K]."""
    given = {"the input": datum.ids, **datum.columns}
    if missing := {TARGETS, *loss.columns} - given.keys():
        raise UserError(f"{where} loss_fn_inputs lacks {', '.join(sorted(missing))}")
    ids, targets = (_tokens(f"{where} {name}", np.asarray(given[name]), vocabulary) for name in ("the input", TARGETS))
    if ids.ndim != 1 or len(ids) >= longest:
        raise UserError(f"{where} the input has shape {list(ids.shape)}; send 1 to {longest - 1} tokens")
    if targets.shape[:1] != ids.shape or targets.ndim > ("weights" in loss.columns) + 1:
        raise UserError(f"{where} {TARGETS} has shape {list(targets.shape)}; send one for each of {len(ids)} tokens")
    columns = {name: _numbers(f"{where} {name}", np.asarray(given[name]), targets.shape) for name in loss.columns}
    moved = np.any([columns[name].any(1, keepdims=True) for name in loss.moved_by], axis=0)
    for name, column in columns.items():
        column[:] = np.where(moved, column, np.nan_to_num(column, posinf=0, neginf=0))
        if not np.isfinite(column).all():
            raise UserError(f"{where} {name} is not finite at a token of the loss")
    columns |= {"mask": moved, "targets": targets.reshape(len(ids), -1)}
    shifted = {NAMES.get(n, n): np.concatenate([np.zeros_like(c[:1]), c]) for n, c in columns.items()}
    shifted["ids"] = np.append(ids, 0)[:, None]
    return {name: torch.from_numpy(column) for name, column in shifted.items()}


def _tokens(what: str, given: NDArray[Any], vocabulary: int) -> NDArray[np.int64]:
    if given.dtype.kind not in "iu" or not given.size:
        raise UserError(f"{what} has {given.size} numbers of {given.dtype}; send token ids as int64")
    if given.min() < 0 or given.max() >= vocabulary:
        raise UserError(f"{what} has ids from {given.min()} to {given.max()}; the model knows 0 to {vocabulary - 1}")
    return given.astype(np.int64)


def _numbers(what: str, given: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if given.dtype.kind not in "fiu" or given.shape != shape:
        raise UserError(f"{what} is {given.dtype} {list(given.shape)}; send float32 {list(shape)}, as {TARGETS}")
    return given.reshape(len(given), -1).astype(np.float32)
