"""Split a batch into micro-batches, and compute columns for all of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from agentrl.config.schema import Actor
from agentrl.core.errors import InfraError, UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.shared_prompts import families, pass_tokens
from agentrl.training.batches.splitting import micro_batches
from agentrl.training.checkpoint.restarts import PassTooLarge
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import ALONE, Ranks

NO_ROOM = (
    "does not fit into the GPU's memory: lower actor.ppo_max_token_len_per_gpu or data.max_response_length, or set "
    "model.enable_gradient_checkpointing=true"
)

Score = Callable[[Batch], tuple[Tensor, ...]]
"""Computes columns f32 [T] of a batch."""


MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Default tokens of a micro-batch. A larger one is no faster on a CPU, and takes more memory; on a GPU a run takes as
many as fit (`passes.fit_passes`)."""


@dataclass(frozen=True)
class MicroBatching:
    """Limits of a micro-batch (None: no limit), and the ranks that compute at the same time."""

    max_tokens: int | None = None
    max_sequences: int | None = None
    ranks: Ranks = ALONE
    hidden: int = 1
    """The model's hidden size, by which shares are of equal work."""
    by_default: bool = field(default=False, compare=False)
    """Whether no key sets `max_tokens`."""
    shares: bool = field(default=False, compare=False)
    """Whether a pass computes equal prompts once."""

    def split(self, batch: Batch, sequences: list[int] | None = None) -> list[list[int]]:
        """Micro-batches of the given sequences (None: all), as indices into the batch, which is this rank's share.

        All ranks get the same number of micro-batches; empty ones only run the collectives. Collective.
        """
        units = self._units(batch, list(range(batch.num_sequences)) if sequences is None else sequences)
        sizes = [self.tokens(batch, unit) for unit in units]
        parts = self._micro_batches(sizes)
        if self.ranks.data_world > 1:
            most = self.ranks.max_over_ranks(len(parts))
            smaller = self._micro_batches(sizes, at_least=most)
            parts = smaller if len(smaller) <= most else parts
            parts += [[]] * (most - len(parts))
        return [[i for unit in part for i in units[unit]] for part in parts]

    def of_default_size(self, tokens: int | None) -> "MicroBatching":
        """Micro-batches of so many tokens, where no key sets their size."""
        return replace(self, max_tokens=tokens) if self.by_default else self

    def halved(self, batch: Batch, sequences: list[int] | None = None) -> "MicroBatching":
        """Limits under which the fullest micro-batch is split. Raises UserError where it is a single sequence."""
        fullest = self.split(batch, sequences)[0]
        if len(fullest) == 1:
            raise UserError(f"a pass of one sequence of {max(batch.lengths)} tokens {NO_ROOM}")
        return replace(self, max_tokens=self.tokens(batch, fullest) // 2)

    def half(self, batch: Batch) -> int:
        """Half of `max_tokens`, or the longest sequence of this rank's share; 0 where passes cannot be smaller."""
        most, longest = self.max_tokens or 0, -(-max(batch.lengths, default=0) // self.ranks.seq_world)
        return max(most // 2, longest) if most > longest else 0

    def micro_batch(self, batch: Batch, rows: list[int]) -> Batch:
        """The sequences of a micro-batch, ready for its pass; for an empty one, a dummy batch."""
        micro = sequences_or_dummy(batch, rows).read()
        return micro.share_prompts() if self._share(batch) else micro

    def _share(self, batch: Batch) -> bool:
        return self.shares and batch.media is None  # equal tokens may stand for different images

    def tokens(self, batch: Batch, rows: list[int]) -> int:
        """Tokens of a micro-batch, by the memory of its pass."""
        lengths = [batch.lengths[i] for i in rows]
        return pass_tokens(lengths, [batch.prompts[i] for i in rows]) if self._share(batch) else sum(lengths)

    def _units(self, batch: Batch, sequences: list[int]) -> list[list[int]]:
        """Sequences that stay in one micro-batch: those with the same prompt, where passes share it."""
        if self.max_sequences or not self._share(batch):
            return [[i] for i in sequences]
        lengths, prompts = [batch.lengths[i] for i in sequences], [batch.prompts[i] for i in sequences]
        return [[sequences[i] for i in members] for members in families(lengths, prompts, self.max_tokens)]

    def _micro_batches(self, sizes: list[int], *, at_least: int = 1) -> list[list[int]]:
        # Sequence-parallel ranks split the tokens of a micro-batch, so it may have `seq_world` times as many.
        tokens = self.max_tokens and self.max_tokens * self.ranks.seq_world
        return micro_batches(sizes, max_tokens=tokens, max_sequences=self.max_sequences, at_least=at_least)


def micro_batch_tokens(tokens: int | None, device: torch.device) -> int:
    """Tokens of a micro-batch: as set, else the device's default."""
    return tokens or MICRO_BATCH_TOKENS[device.type]


def micro_batching_of(actor: Actor, device: torch.device) -> MicroBatching:
    """Micro-batches of the settings: by tokens, or without `use_dynamic_bsz` by sequences."""
    filled, tokens = actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu
    return MicroBatching(
        micro_batch_tokens(tokens, device) if filled else None,
        actor.ppo_micro_batch_size_per_gpu,
        by_default=filled and tokens is None,
    )


def for_ranks(micro_batching: MicroBatching, model: ModelHandle, *, ranks: Ranks) -> MicroBatching:
    """These limits for a model that is sharded over `ranks`."""
    if ranks.world == 1:
        return micro_batching
    # Each layer is a collective: a model that cannot pack must run one sequence per micro-batch on every rank.
    sequences = micro_batching.max_sequences if model.packs else 1
    hidden = model.sizes.hidden
    return replace(micro_batching, max_sequences=sequences, ranks=ranks, hidden=hidden)


def sequences_or_dummy(batch: Batch, rows: list[int]) -> Batch:
    """The given sequences; without any, a dummy batch."""
    return batch.select(rows) if rows else batch.dummy()


def shares_by_default(model: ModelHandle, device: torch.device, ranks: Ranks) -> bool:
    """Whether passes compute equal prompts once where no key says so: whole sequences, on a GPU whose kernel can."""
    whole = device.type == "cuda" and ranks.seq_world == 1
    return whole and model.in_half and model.packs and model.shares_keys(device)


def check_shares(model: ModelHandle, device: torch.device, ranks: Ranks) -> None:
    """Raises UserError where passes of a model cannot compute equal prompts once."""
    if ranks.seq_world > 1 or not model.packs:
        raise UserError(
            "actor.share_prompts=true needs a model whose sequences can be packed, and "
            "actor.ulysses_sequence_parallel_size=1"
        )
    if not model.shares_keys(device):
        raise UserError(
            f"actor.share_prompts=true: attention by {model.attention_kernel(device)} computes whole sequences only; "
            "install a newer PyTorch or flash-attn-4"
        )


@torch.no_grad()
def score_batch(score: Score, batch: Batch, micro_batching: MicroBatching, *, columns: int) -> Tensor:
    """`score` of every token of this rank's share, computed in micro-batches: f32 [columns, T]. Collective."""
    table = torch.zeros(columns, batch.num_tokens, dtype=torch.float32, device=batch.ids.device)
    sizes = micro_batching
    while not fits(partial(_fill, table, score, batch, sizes), sizes.ranks, sizes.half(batch)):
        sizes = sizes.halved(batch)
    return table


def fits(run: Callable[[], None], ranks: Ranks, half: int = 0) -> bool:
    """`run()`; whether the GPU's memory was enough. On several ranks, of which the others compute on, raises
    PassTooLarge with the tokens of smaller passes (`half`), or InfraError where there are none."""
    try:
        run()
        return True
    except torch.OutOfMemoryError as error:
        if ranks.world > 1:
            raise (PassTooLarge(f"a pass {NO_ROOM}", half) if half else InfraError(f"a pass {NO_ROOM}")) from error
    # Outside the handler, where the error no longer keeps the pass's tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def _fill(table: Tensor, score: Score, batch: Batch, micro_batching: MicroBatching) -> None:
    parts = [(micro_batching.micro_batch(batch, rows), batch.tokens_of(rows)) for rows in micro_batching.split(batch)]
    for micro, tokens in parts:
        scored = torch.stack(score(micro))
        if tokens.numel():
            table[:, tokens] = scored
            if batch.experts is not None and micro.experts is not None:
                batch.experts[tokens] = micro.experts
