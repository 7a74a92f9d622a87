"""Drawing one token a row, with its log-prob under the distribution it was drawn from.

Sampling inverts the cumulative distribution in vocabulary order at one uniform number a row, and that number is a
function of the request's seed and of how many tokens it has drawn, nothing else. So a request draws the same tokens
whatever shares its batch, unless rounding moves the edge of a token's interval across the number: logits differ in
their last bits between batch sizes (see docs/engines.md for how much), which changes about one float32 token in a
million. `torch.multinomial` would need a generator a request and is many times slower on CPUs.

Filters apply in the order temperature, top-k, top-p, min-p; each sees the distribution renormalised after the one
before, as in transformers. Temperature 0 takes the likeliest token and reports the untempered, unfiltered log-prob.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.rollout.engine import Sampling

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
BLOCK = 128
FIRST_CANDIDATES = 256


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 24 random bits, for token `position` of the request with `seed`.

    Counter-based: SplitMix64's mixing function (Steele et al., OOPSLA 2014) over seed and position.
    """
    return (_mix(_mix(seed & MASK) + (position + 1) * GOLDEN & MASK) >> 40) / 2**24


def _mix(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def sample(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Token and log-prob (float32 arithmetic) for each row of `logits` [n, vocabulary], of any float dtype."""
    kinds = [_kind(sampling) for sampling in samplings]
    tokens = torch.empty(len(kinds), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(kinds), dtype=torch.float32, device=logits.device)
    for kind in sorted(set(kinds)):
        rows = [i for i, k in enumerate(kinds) if k == kind]
        everything = len(rows) == len(kinds)
        where = torch.tensor(rows, device=logits.device)
        drawn, kept = _draw(
            kind,
            logits if everything else logits[where],
            [samplings[i] for i in rows],
            logits.new_tensor([uniforms[i] for i in rows], dtype=torch.float32),
        )
        tokens[where], logprobs[where] = drawn, kept
    return tokens.tolist(), logprobs.tolist()


def _kind(sampling: Sampling) -> str:
    if sampling.temperature == 0:
        return "greedy"
    filters = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return "filtered" if filters else "plain"


def _draw(kind: str, logits: Tensor, samplings: list[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    if kind == "greedy":
        tokens = logits.argmax(-1)
        return tokens, _pick(torch.softmax(logits, -1, dtype=torch.float32), tokens).log()
    probs = _tempered(logits, [sampling.temperature for sampling in samplings])
    if kind == "plain":
        tokens = invert(probs, uniforms)
        return tokens, _pick(probs, tokens).log()
    kept, ids = _filter(probs, samplings)
    places = invert(kept, uniforms)
    return _pick(ids, places), (_pick(kept, places) / kept.sum(-1)).log()


def _tempered(logits: Tensor, temperatures: list[float]) -> Tensor:
    if all(temperature == 1 for temperature in temperatures):
        return torch.softmax(logits, -1, dtype=torch.float32)
    divisor = logits.new_tensor(temperatures, dtype=torch.float32)
    return torch.softmax(logits.float() / divisor[:, None], -1)


def _filter(probs: Tensor, samplings: list[Sampling]) -> tuple[Tensor, Tensor]:
    """Kept probabilities (0 where filtered out) and token ids [n, k], both in vocabulary order.

    Vocabulary order, because between batch sizes two nearly equal tokens may swap ranks: by rank that would move
    whole intervals, by id it moves an edge by a rounding error.
    """
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
    ids, order = ids.sort(-1)
    return (values * keep).gather(-1, order), ids


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


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """For each row of `weights` [n, k] >= 0, not normalised: the index at share `uniforms` [n] of the row's sum.

    Never an index of weight 0. Two levels, sums of blocks and then one block, since a running sum over the whole
    vocabulary costs as much as the softmax.
    """
    width = weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, -width % BLOCK)) if width % BLOCK else weights
    blocks = padded.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1).cumsum(-1)
    target = _below(uniforms * sums[:, -1], sums[:, -1])
    block = _first_above(sums, target)
    before = torch.where(block > 0, _pick(sums, (block - 1).clamp(min=0)), 0.0)
    inner = blocks[torch.arange(len(weights), device=weights.device), block].cumsum(-1)
    place = _first_above(inner, _below(target - before, inner[:, -1]))
    return (block * BLOCK + place).clamp(max=width - 1)


def _below(target: Tensor, total: Tensor) -> Tensor:
    """`target`, but under `total` even where rounding has lifted it there."""
    return torch.minimum(target.clamp(min=0), torch.nextafter(total, torch.zeros_like(total)))


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    index = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return index.clamp(max=cumulative.shape[-1] - 1)  # NaN searches past the end; its log-prob tells later


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(-1, index[:, None])[:, 0]
