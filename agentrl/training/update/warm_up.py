"""Compile a model's blocks before their first pass that counts: while the engine's server starts.

A compilation that fails, or for which memory is short, ends no run.

Invariants: weights, gradients, optimizer and random generators are afterwards as before, so a run takes the same steps
with and without it; the passes are those of an update in all that compiled code depends on: modes, packing, autocast.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from agentrl.training.batches.batch import Batch, bounds_of, positions_of
from agentrl.training.batches.shared_prompts import Prompt
from agentrl.training.checkpoint.rng import rng_state, set_rng_state
from agentrl.training.model.sizes import ModelSizes
from agentrl.training.perf.compiled_block import BackwardFailed, backward
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


def warm_up(trainable: Trainable, *, longest: int, scores_apart: bool, should_stop: Callable[[], bool]) -> None:
    """Compile the blocks of a trained model; returns at once where none are compiled.

    `longest`: tokens of the longest sequence. `scores_apart`: it also scores batches outside of an update.
    `should_stop` is asked before each kind of passes: a warm-up that delays the run is of no use.
    """
    model = trainable.model
    blocks = compiled_blocks(model.module)
    if not blocks:
        return
    random = rng_state()
    tokens = trainable.micro_batching.max_tokens or MOST_TOKENS
    if trainable.device.type == "cuda":
        memory = torch.cuda.get_device_properties(trainable.device).total_memory
        tokens = min(tokens, tokens_within(memory, model.sizes))
    batch = dummy_batch(tokens, longest).to(trainable.device)
    if model.routing is not None:
        batch.experts = model.routing.unknown(batch.num_tokens)
    if trainable.micro_batching.shares:
        batch.prompts = [Prompt(0, 1)] * batch.num_sequences  # so that fewer tokens are computed than attention sees
        batch.share_prompts()
    with suppress(BackwardFailed), representative(blocks), model.computing():  # it has said so
        passes = partial(_passes, trainable, batch, scores_apart, should_stop)
        if not fits(passes, trainable.micro_batching.ranks):
            log.warning("no GPU memory to compile beside the server: the first update compiles")
    model.module.eval()
    trainable.clear_gradients()
    set_rng_state(random)
    if trainable.device.type == "cuda":
        torch.cuda.empty_cache()  # the server on this GPU sizes its cache by the free memory


def _passes(trainable: Trainable, batch: Batch, scores_apart: bool, should_stop: Callable[[], bool]) -> None:
    """The kinds of passes that a step has, those that every step has first."""
    if should_stop():
        return
    trainable.model.train()
    backward(trainable.model.compiled, trainable.score(batch)[0].sum(), trainable.micro_batching.ranks)
    if scores_apart:
        if should_stop():
            return
        trainable.model.module.eval()
        torch.no_grad()(trainable.score)(batch)
    if not should_stop():
        trainable.model.train()
        torch.no_grad()(trainable.score)(batch)  # sequences of advantage 0


def tokens_within(memory: int, sizes: ModelSizes) -> int:
    """Tokens of a pass through one kind of blocks, in the part that a server leaves of a GPU of `memory` bytes."""
    each = PER_KIND * (32 * sizes.hidden + 8 * sizes.inner)  # half precision, counted on Llama and Qwen3
    return int(memory * SHARE / each)


def dummy_batch(tokens: int, longest: int) -> Batch:
    """Sequences of about `tokens` tokens, at most MOST_TOKENS, none longer than `longest`; the last ones are scored."""
    lengths = _lengths(min(tokens, MOST_TOKENS), longest)
    total = sum(lengths)
    positions = positions_of(bounds_of(lengths), total)
    return Batch.of(positions % 2, (torch.arange(total) >= total - SCORED) & (positions > 0), lengths)


def _lengths(tokens: int, longest: int) -> list[int]:
    """Odd lengths, so that no size of the batch equals one of the model: compiled code would depend on it."""
    each = max(min(longest, tokens // 3), 3) // 2 * 2 - 1
    return [each] * max(tokens // each - 1, 1) + [max(each // 2, 2)]
