"""Log-probs and entropies of a batch's tokens under a causal language model.

Invariants:
- a token's values depend on its own sequence only: packing changes them by float rounding only;
- where the model is a backbone with a linear head, full logits exist for one chunk of tokens at most, and those of
  `keep` tokens until the backward pass;
- softmax runs in float32, at the sampling temperature.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.training.batches.batch import Batch
from agentrl.training.model.forward import run
from agentrl.training.model.handle import TOLERANCE, ModelHandle
from agentrl.training.model.head.chunked import ChunkedLogprobs, Compare, logits_of
from agentrl.training.model.head.float32_head import Float32Linear
from agentrl.training.parallel.ulysses import TokenShard, token_shard_of
from agentrl.training.perf.compiling import uncompiled
from agentrl.training.perf.cpu import missing_rows
from agentrl.training.perf.device import as_autocast

PROBE_TOKENS = 8


class Readout(NamedTuple):
    """Factors of the logits of N tokens: logits = hidden @ weight.T + bias. `lora`: the last columns of a weight whose
    others are frozen."""

    hidden: Tensor
    """[N, H]; where there is no linear head, the logits themselves."""
    weight: Tensor | None = None
    """[V, H]."""
    bias: Tensor | None = None
    lora: Tensor | None = None

    def logits(self, rows: Tensor, *, wide: bool) -> Tensor:
        """The logits f32 [C, V] of some tokens; `wide`: by a product in float32."""
        if self.weight is None:
            return self.hidden[rows].float()
        return logits_of(rows, self.hidden, self.weight, self.bias, wide=wide).float()


Logits = Callable[[Tensor], Tensor]
"""Tokens int64 [C] of a batch -> their logits f32 [C, V] under a model, divided by the temperature."""


class TokenLogprobs:
    """Scores tokens with a causal language model, which is shared, not copied."""

    def __init__(self, model: nn.Module | ModelHandle, *, temperature: float = 1.0) -> None:
        self.model = ModelHandle.of(model)
        self.causal_lm = self.model.base
        self.wide = isinstance(self.model.head, Float32Linear)
        """Whether logits are float32, whatever the layers below compute in."""
        self.kernels = self.model.log_prob_kernels
        self.keep = 0
        """Tokens of a pass whose logits stay for its backward pass, which computes the others again."""
        # Greedy sampling reports the log-probs of the untempered distribution.
        self.scale = 1.0 / temperature if temperature > 0 else 1.0
        with torch.no_grad(), uncompiled():  # without gradients a sharded model reshards its parameters after it
            self.linear_head: bool = self.kernels is not None and self.model.run_gathered(self._probe)

    @property
    def logit_bytes(self) -> int:
        """Bytes of a token's logits; 0 where they cannot be kept."""
        if not self.linear_head:
            return 0
        vocabulary: int = self.model.config.get_text_config().vocab_size
        return vocabulary * (4 if self.wide else self.model.dtype.itemsize)

    def __call__(
        self, batch: Batch, *, every_token: bool = False, compare: Compare | None = None
    ) -> tuple[Tensor, ...]:
        """(log-probs f32 [T], entropies f32 [T] in nats), differentiable where autograd is on.

        Only model tokens are scored, the rest is 0; `every_token` scores all except each sequence's first, but others
        than the model's have no gradient. The figures of `compare`, which gets indices of the batch's tokens, are
        further columns.
        """
        part, own = self._own(batch, every_token)
        columns = self.model.run_gathered(lambda: self._score(batch, part, own, compare))
        empty = torch.zeros(batch.num_tokens, dtype=torch.float32, device=batch.ids.device)
        return tuple(part.gather(empty.index_copy(0, own, column)) for column in columns)

    @torch.no_grad()
    def logits(self, batch: Batch, targets: Tensor | None = None, size: int = 0) -> Logits:
        """A function that computes logits of the model tokens, in comparisons of another model with this one.

        `targets`: the model tokens as int64 [N] indices into the other model's batch of `size` tokens; None: it has
        this batch. Collective.
        """
        part, own = self._own(batch, every_token=False)
        read = self.model.run_gathered(lambda: self._kept(self._read(batch, part, own)))
        rows = torch.arange(len(own), device=own.device)
        if targets is not None and part.group is not None:  # another rank may compare a token there
            whole = read.hidden.new_zeros(batch.num_tokens, read.hidden.shape[1])
            read = read._replace(hidden=part.gather(whole.index_copy(0, own, read.hidden[: len(own)])))
            rows = batch.scored
        at = own if targets is None else targets
        row_of = torch.zeros(size or batch.num_tokens, dtype=torch.long, device=own.device).index_copy(0, at, rows)
        return lambda tokens: read.logits(row_of[tokens], wide=self.wide) * self.scale

    def _kept(self, read: Readout) -> Readout:
        """Copy the head of a sharded model, which reshards it after the forward pass."""
        keep = torch.clone if self.model.sharded else torch.detach
        weight, bias = (None if x is None else keep(x) for x in read[1:3])
        return Readout(read.hidden, weight, bias)

    def _own(self, batch: Batch, every_token: bool) -> tuple[TokenShard, Tensor]:
        """This rank's tokens of a micro-batch, and the tokens [N] to score that follow one of them."""
        # A sequence's first token has nothing before it.
        others = ((batch.positions > 0) & ~batch.mask).nonzero().squeeze(-1) if every_token else batch.scored[:0]
        targets = torch.cat([batch.scored, others])
        part = token_shard_of(batch, self.model.ranks)
        return part, part.owned(targets)

    def _score(self, batch: Batch, part: TokenShard, targets: Tensor, compare: Compare | None) -> tuple[Tensor, ...]:
        """The columns of the tokens at `targets`: f32 [N] each."""
        ids = (batch.ids if batch.targets is None else batch.targets[:, 0])[targets]
        read = self._read(batch, part, targets)
        if read.weight is not None:
            moved = len(part.owned(batch.scored))
            keep = min(self.keep, moved) if torch.is_grad_enabled() else 0
            ids, tokens = (F.pad(x, (0, len(read.hidden) - len(x))) for x in (ids, targets))
            options = self.scale, self.kernels, self.wide, keep, compare, tokens, moved
            found = ChunkedLogprobs.apply(*read[:3], ids, *options, read.lora)
            return tuple(column[: len(targets)] for column in found)
        logits = read.hidden.float() * self.scale
        logprobs = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, None]).squeeze(-1)
        figures = () if compare is None else compare(logits, targets)
        return logprobs, entropy_from_logits(logits), *figures

    def _read(self, batch: Batch, part: TokenShard, targets: Tensor) -> Readout:
        """Factors of the logits of the tokens at `targets` [N], each from the position before it."""
        rows = part.before(targets)
        if not self.linear_head:
            return Readout(run(self.model, batch, part, self._logits)[rows])
        rows = F.pad(rows, (0, missing_rows(len(rows), rows.device)))  # by the first token of the pass
        return self._readout(run(self.model, batch, part, self.model.hidden)[rows])

    def _readout(self, hidden: Tensor) -> Readout:
        """Factors of the logits of hidden states [N, H]."""
        # Autocast does not apply in the backward pass of a custom autograd function.
        head, lora = self.model.head, self.model.head_lora
        weight, bias = as_autocast(head.weight), None if head.bias is None else as_autocast(head.bias)
        if lora is None:
            return Readout(as_autocast(hidden), weight, bias)
        down, up, scale = lora[0], as_autocast(lora[1].weight), lora[2]
        low = scale * down(hidden.to(down.weight.dtype))
        wider = torch.cat([as_autocast(hidden), as_autocast(low)], 1)
        return Readout(wider, torch.cat([weight, up], 1).detach(), bias, up)

    def _logits(self, ids: Tensor, positions: Tensor, **arguments: object) -> Tensor:
        return self.causal_lm(input_ids=ids[None], position_ids=positions, **arguments).logits[0]

    def _probe(self) -> bool:
        """Whether the logits are exactly a linear head, maybe with LoRA, on the backbone's output: no cap, no scale."""
        head = self.model.head
        if type(head) not in (nn.Linear, Float32Linear) or self.causal_lm.base_model is self.causal_lm:
            return False
        ids = torch.arange(min(PROBE_TOKENS, head.weight.shape[0]), device=head.weight.device)
        logits = self._logits(ids, ids[None], use_cache=False).float()
        read = self._readout(self.model.hidden(ids, ids[None], use_cache=False))
        linear = read.logits(torch.arange(len(ids), device=ids.device), wide=self.wide)
        tolerance = TOLERANCE.get(head.weight.dtype, 1e-2) * logits.abs().max()
        return logits.shape == linear.shape and bool((logits - linear).abs().max() <= tolerance)


@torch.no_grad()
def score_tokens(model: nn.Module | ModelHandle, ids: list[int], device: torch.device) -> Tensor:
    """The model's log-prob of each token given those before it, f32 [len(ids)] on the CPU; 0 for the first. Collective
    for a sharded model."""
    batch = Batch.of(torch.tensor(ids), torch.ones(len(ids), dtype=torch.bool), [len(ids)]).to(device)
    return TokenLogprobs(model)(batch, every_token=True)[0].cpu()
