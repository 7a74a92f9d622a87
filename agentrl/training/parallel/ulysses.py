"""Ulysses sequence parallelism (arXiv 2309.14509): ranks of a sequence group split the tokens of a micro-batch, and for
attention the heads.

Each rank computes all layers for its contiguous part of the packed tokens. An all-to-all before attention turns some
tokens of all heads into all tokens of some heads; a second one after it reverses that. So attention sees whole
sequences, and the result equals that of one process. Every rank gathers the results of all tokens and computes the
whole loss; backward covers its own tokens, and the gradient is the sum over ranks.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_tensor_autograd, all_to_all_single_autograd

from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.shared_prompts import SharedPrompts
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.perf.cpu import missing_rows


@dataclass(frozen=True)
class TokenShard:
    """One rank's tokens of a micro-batch; without sequence parallelism, all of them."""

    ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    """Bounds of all sequences. Tokens that fill up, to a multiple of the group or of a CPU's rows, are one more."""
    longest: int
    start: int
    """Index of this rank's first token in the micro-batch."""
    group: Any = None
    shared: SharedPrompts | None = None
    """The layout of a pass that computes equal prompts once: `ids` and `positions` are of the tokens that it keeps."""

    def before(self, targets: Tensor) -> Tensor:
        """Rows [N] of this shard with the tokens before those at `targets` [N]."""
        return targets - 1 - self.start if self.shared is None else self.shared.seen[targets - 1]

    def owned(self, targets: Tensor) -> Tensor:
        """The token indices [N] that follow a token of this shard."""
        if self.group is None:
            return targets
        before = targets - 1 - self.start
        return targets[(before >= 0) & (before < self.ids.numel())]

    def rows(self, column: Tensor) -> Tensor:
        """The rows of this shard's tokens in a column [T, ...]; those of tokens that fill up are 0."""
        if self.shared is not None:
            return column[self.shared.kept]
        own = column[self.start : self.start + self.ids.numel()]
        return torch.cat([own, own.new_zeros(self.ids.numel() - len(own), *own.shape[1:])])

    def join(self, rows: Tensor, tokens: int) -> Tensor:
        """The column of all `tokens`, of which each rank has its shard's rows. Collective over the group."""
        if self.shared is not None:
            return rows[self.shared.seen]
        if self.group is None:
            return rows[:tokens]
        return gather_tokens(rows, self.group)[:tokens]

    def gather(self, column: Tensor) -> Tensor:
        """A column f32 [T] summed over the group: each rank gives its own entries, and zeros elsewhere."""
        if self.group is None:
            return column
        whole: Tensor = _Gather.apply(column, self.group)
        return whole


def token_shard_of(batch: Batch, ranks: Ranks) -> TokenShard:
    """This rank's tokens of a micro-batch."""
    longest, shared = max(batch.lengths), batch.shared
    if shared is not None:
        kept = shared.kept
        return TokenShard(batch.ids[kept], batch.positions[kept], batch.cu_seqlens, longest, 0, shared=shared)
    filling = -batch.num_tokens % ranks.seq_world
    if ranks.seq_world == 1 and batch.media is None:
        filling = missing_rows(batch.num_tokens, batch.ids.device)
    bounds, positions = batch.cu_seqlens, batch.positions
    if filling:
        bounds = torch.cat([bounds, bounds[-1:] + filling])
        positions = torch.cat([positions, torch.arange(filling, device=positions.device)])
    ids = F.pad(batch.ids, (0, filling)).chunk(ranks.seq_world)[ranks.seq_rank]
    positions = positions.chunk(ranks.seq_world)[ranks.seq_rank]
    start = ranks.seq_rank * ids.numel()
    return TokenShard(ids, positions, bounds, max(longest, filling), start, ranks.seq_group)


def to_heads(query: Tensor, key: Tensor, value: Tensor, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """From own tokens of all heads [1, heads, T / n, D] to all tokens of own heads [1, heads / n, T, D].

    Key and value heads are repeated first where there are fewer than ranks.
    """
    size = torch.distributed.get_world_size(group)
    heads, kv_heads = query.shape[1], key.shape[1]
    repeats = size // gcd(kv_heads, size)
    if heads % (kv_heads * repeats):
        repeats = heads // kv_heads
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    query, key, value = (exchanged(x, group) for x in (query, key, value))
    return query, key, value


def gather_tokens(rows: Tensor, group: Any) -> Tensor:
    """From own tokens [T / n, ...] to all tokens of the group [T, ...]."""
    return all_gather_tensor_autograd(rows.contiguous(), 0, group)


def check_heads(config: Any, packed: bool, size: int) -> None:
    """Raises UserError where a model cannot be split among `size` ranks."""
    key = f"ulysses_sequence_parallel_size={size}"
    heads = getattr(config.get_text_config(), "num_attention_heads", size)
    if heads % size:
        raise UserError(f"{key}: the model has {heads} attention heads; choose a divisor of that")
    if not packed:
        raise UserError(
            f"{key}: a {config.model_type} model cannot be packed, so its tokens cannot be split; set it to 1"
        )


class _Gather(torch.autograd.Function):
    """The sum over ranks; in backward each rank keeps the gradient of its input."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        whole = tensor.clone()
        torch.distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None


def exchanged(tensor: Tensor, group: Any) -> Tensor:
    """All-to-all: dimension 1 is split, one part for each rank; the parts received are joined along dimension 2.

    So attention's output of all tokens of own heads [1, T, heads / n, D] becomes that of own tokens of all heads.
    """
    sent = torch.stack(tensor.chunk(torch.distributed.get_world_size(group), dim=1))
    return torch.cat(all_to_all_single_autograd(sent, None, None, group).unbind(0), dim=2)
