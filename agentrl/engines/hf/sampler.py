"""Drawing one token a row, with its log-prob under the distribution it was drawn from.

A token is drawn by a race: token i with probability p_i gets an exponentially distributed time of rate p_i, and the
smallest time wins (the Gumbel-max trick, Maddison et al., arXiv 1411.0030). The times are a hash of the request's seed,
its number of drawn tokens, and the token's id. So a request draws the same tokens in every batch, unless rounding
changes the winner: logits differ in their last bits between batch sizes, and the chance of another winner is about the
relative difference of the probabilities. Inverting the cumulative distribution at one uniform number would cost the
same, but each change of a probability moves all edges: over a large vocabulary it changed one token in a hundred, the
race none.

Plain sampling races twice, first among blocks of the vocabulary by their sums, then in the winning block, since noise
for every token would cost more than the softmax. `torch.multinomial` needs that noise, and a generator per request.

Filters apply in the order temperature, top-k, top-p, min-p; each sees the distribution renormalised after the one
before, as in transformers. Temperature 0 takes the likeliest token and reports the untempered, unfiltered log-prob.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.engines.engine import Sampling

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64  # as int64
MIX_2 = 0x94D049BB133111EB - 2**64
BLOCK = 128
FIRST_CANDIDATES = 256


def streams(seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """The streams of noise for the tokens at `positions` of the requests with `seeds`, int64 [n].

    Counter-based: SplitMix64's mixing function (Steele et al., OOPSLA 2014) over seed and position.
    """
    wrapped = torch.tensor([(seed + 2**63) % 2**64 - 2**63 for seed in seeds])
    return _mix(_mix(wrapped) + (torch.tensor(positions) + 1) * GOLDEN)


def _mix(z: Tensor) -> Tensor:
    """On int64, whose products wrap and whose right shift copies the sign."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * MIX_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * MIX_2
    return z ^ ((z >> 31) & (2**33 - 1))


def times(streams: Tensor, counters: Tensor) -> Tensor:
    """Standard exponential float64 [n, k] for `streams` [n, 1] and integer `counters` [k] or [n, k]."""
    bits = (_mix(streams + counters * GOLDEN) >> 11) & (2**53 - 1)
    return -torch.log1p(-(bits.double() + 0.5) * 2.0**-53)


def sample(logits: Tensor, samplings: Sequence[Sampling], noise: Tensor) -> tuple[list[int], list[float]]:
    """Token and log-prob (float32) for each row of `logits` [n, vocabulary], of any float dtype.

    `noise`: the rows' `streams` [n].
    """
    kinds = [_kind(sampling) for sampling in samplings]
    tokens = torch.empty(len(kinds), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(kinds), dtype=torch.float32, device=logits.device)
    for kind in sorted(set(kinds)):
        rows = [i for i, k in enumerate(kinds) if k == kind]
        everything = len(rows) == len(kinds)
        where = torch.tensor(rows, device=logits.device)
        own, settings = logits if everything else logits[where], [samplings[i] for i in rows]
        tokens[where], logprobs[where] = _draw(kind, own, settings, noise[rows].to(logits.device)[:, None])
    return tokens.tolist(), logprobs.tolist()


def likeliest(logits: Tensor, sampling: Sampling) -> tuple[tuple[int, float], ...]:
    """`sampling.candidates` tokens of one row of logits [vocabulary] with their log-probs after temperature."""
    logprobs = torch.log_softmax(logits.float() / sampling.temperature, -1)
    values, ids = logprobs.topk(min(sampling.candidates, len(logprobs)))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))


def _kind(sampling: Sampling) -> str:
    if sampling.temperature == 0:
        return "greedy"
    filters = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return "filtered" if filters else "plain"


def _draw(kind: str, logits: Tensor, samplings: list[Sampling], streams: Tensor) -> tuple[Tensor, Tensor]:
    if kind == "greedy":
        tokens = logits.argmax(-1)
        return tokens, _pick(torch.softmax(logits, -1, dtype=torch.float32), tokens).log()
    probs = _tempered(logits, [sampling.temperature for sampling in samplings])
    if kind == "plain":
        tokens = race(probs, streams)
        return tokens, _pick(probs, tokens).log()
    kept, ids = _filter(probs, samplings)
    places = (kept / times(streams, ids)).argmax(-1)
    return _pick(ids, places), (_pick(kept, places) / kept.sum(-1)).log()


def race(weights: Tensor, streams: Tensor) -> Tensor:
    """An index of each row of `weights` [n, k] >= 0, drawn in proportion to them; never one of weight 0."""
    width = weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, -width % BLOCK)) if width % BLOCK else weights
    blocks = padded.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1)
    # Blocks have negative counters, so that their noise differs from every token's.
    block = (sums / times(streams, -1 - torch.arange(sums.shape[-1], device=sums.device))).argmax(-1)
    inner = blocks[torch.arange(len(weights), device=weights.device), block]
    ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=weights.device)
    winner = (inner / times(streams, ids)).argmax(-1)
    return _pick(ids, winner).clamp(max=width - 1)  # NaN may point past the end; `Request.append` refuses its log-prob


def _tempered(logits: Tensor, temperatures: list[float]) -> Tensor:
    if all(temperature == 1 for temperature in temperatures):
        return torch.softmax(logits, -1, dtype=torch.float32)
    divisor = logits.new_tensor(temperatures, dtype=torch.float32)
    return torch.softmax(logits.float() / divisor[:, None], -1)


def _filter(probs: Tensor, samplings: list[Sampling]) -> tuple[Tensor, Tensor]:
    """Kept probabilities (0 where filtered out) and their token ids [n, k], likeliest first."""
    vocabulary = probs.shape[-1]
    top_k = probs.new_tensor([s.top_k if s.top_k > 0 else vocabulary for s in samplings])[:, None]
    top_p = probs.new_tensor([s.top_p for s in samplings])[:, None]
    min_p = probs.new_tensor([s.min_p for s in samplings])[:, None]
    values, ids = _candidates(probs, top_k, top_p, min_p)
    ranks = torch.arange(values.shape[-1], device=probs.device)
    values = values * (ranks < top_k)
    below = values.cumsum(-1) - values
    whole = torch.where(top_k < vocabulary, values.sum(-1, keepdim=True), torch.ones_like(top_p))
    keep = ((below < top_p * whole) | (top_p >= 1)) & (values >= min_p * values[:, :1])
    keep[:, 0] = True
    return values * keep, ids


def _candidates(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens, likeliest first: as many as the filters can keep, seldom the whole vocabulary."""
    vocabulary = probs.shape[-1]
    count = FIRST_CANDIDATES
    while True:
        values, ids = probs.topk(min(count, vocabulary), dim=-1)
        total = values.sum(-1, keepdim=True)
        enough = (top_k <= count) | ((top_p < 1) & (total >= top_p)) | (values[:, -1:] < min_p * values[:, :1])
        if count >= vocabulary or bool(enough.all()):
            return values, ids
        count *= 8


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(-1, index[:, None])[:, 0]
