"""Compile a model's blocks before their first pass that counts: while the engine's server starts.

A compilation that fails, or for which memory is short, ends no run.

Invariants: weights, gradients, optimizer and random generators are afterwards as before, so a run takes the same steps
with and without it; the passes are those of an update in all that compiled code depends on: modes, packing, autocast.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentrl.training.batches.batch import Batch, bounds_of, positions_of
from agentrl.training.batches.shared_prompts import Prompt
from agentrl.training.checkpoint.rng import rng_state, set_rng_state
from agentrl.training.model.compute_copies import computing
from agentrl.training.perf.compiled_block import BackwardFailed
from agentrl.training.perf.compiling import PER_KIND, compiled_blocks, representative
from agentrl.training.update.micro_batches import fits
from agentrl.training.update.trainable import Trainable

MOST_TOKENS = 16384
"""Tokens of a pass: its kernels are chosen for about that many."""
SCORED = 256
"""Tokens that are scored: more would need memory for their logits."""

SHARE = 1 / 32
"""Largest part of a GPU's memory for the activations of these passes: the server takes its own part meanwhile."""

log = logging.getLogger(__name__)

Score = Callable[[Batch], tuple[Tensor, ...]]


Enough = Callable[[], bool]
"""Whether the rest is left to the passes that need it: nothing waits for a longer warm-up."""


def warm_up(trainable: Trainable, score: Score, *, longest: int, scores_apart: bool, enough: Enough) -> None:
    """Compile the blocks of a trained model; returns at once where none are compiled.

    `longest`: tokens of the longest sequence. `scores_apart`: it also scores batches outside of an update. `enough` is
    asked before each kind of passes.
    """
    blocks, module = compiled_blocks(trainable.module), trainable.module
    if not blocks:
        return
    random = rng_state()
    tokens = min(trainable.micro_batching.max_tokens or MOST_TOKENS, _room(module, trainable.device))
    batch = dummy_batch(tokens, longest).to(trainable.device)
    if trainable.micro_batching.shares:
        batch.prompts = [Prompt(0, 1)] * batch.num_sequences  # so that fewer tokens are computed than attention sees
        batch.share_prompts()
    with suppress(BackwardFailed), representative(blocks), computing(module):  # it has said so
        passes = partial(_passes, trainable, score, batch, scores_apart, enough)
        if not fits(passes, trainable.micro_batching.ranks):
            log.warning("no GPU memory to compile beside the server: the first update compiles")
    module.eval()
    trainable.clear_gradients()
    set_rng_state(random)
    if trainable.device.type == "cuda":
        torch.cuda.empty_cache()  # the server on this GPU sizes its cache by the free memory


def _passes(trainable: Trainable, score: Score, batch: Batch, scores_apart: bool, enough: Enough) -> None:
    """The kinds of passes that a step has, those that every step has first."""
    if enough():
        return
    trainable.module.train()
    trainable.backward(score(batch)[0].sum())
    if scores_apart:
        if enough():
            return
        trainable.module.eval()
        _without_gradient(score, batch)
    if not enough():
        trainable.module.train()
        _without_gradient(score, batch)  # sequences of advantage 0


def _room(module: Any, device: torch.device) -> int:
    """Tokens whose activations may be in the device's memory beside a server."""
    if device.type != "cuda":
        return MOST_TOKENS
    return tokens_within(torch.cuda.get_device_properties(device).total_memory, module.config.get_text_config())


def tokens_within(memory: int, text: Any) -> int:
    """Tokens of a pass through one kind of blocks, on a GPU of `memory` bytes. `text`: the configuration."""
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    each = PER_KIND * (32 * text.hidden_size + 8 * inner)  # half precision, counted on Llama and Qwen3
    return int(memory * SHARE / each)


@torch.no_grad()
def _without_gradient(score: Score, batch: Batch) -> None:
    score(batch)


def dummy_batch(tokens: int, longest: int) -> Batch:
    """Sequences of about `tokens` tokens, at most MOST_TOKENS, none longer than `longest`; the last ones are scored."""
    lengths = _lengths(min(tokens, MOST_TOKENS), longest)
    total, bounds = sum(lengths), bounds_of(lengths)
    positions = positions_of(bounds, total)
    zeros = torch.zeros(total)
    own = torch.arange(len(lengths))
    columns: dict[str, Any] = {"rollout_logprobs": zeros, "rewards": zeros, "trajectory": own, "group": own}
    return Batch(
        ids=positions % 2,
        mask=(torch.arange(total) >= total - SCORED) & (positions > 0),
        cu_seqlens=bounds,
        **columns,
    )


def _lengths(tokens: int, longest: int) -> list[int]:
    """Odd lengths, so that no size of the batch equals one of the model: compiled code would depend on it."""
    each = max(min(longest, tokens // 3), 3) // 2 * 2 - 1
    return [each] * max(tokens // each - 1, 1) + [max(each // 2, 2)]
