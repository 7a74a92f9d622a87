"""Compile a model's transformer blocks with torch.compile; a block that cannot be compiled runs as it is."""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from agentrl.training.parallel.ranks import Ranks

log = logging.getLogger(__name__)


def compiles(chosen: bool | None, device: torch.device, *, fused: bool = False) -> bool:
    """Whether blocks are compiled on `device`: as chosen; None: on a GPU, unless another package has `fused` them."""
    return device.type == "cuda" and not fused if chosen is None else chosen


def start_workers() -> None:
    """Start the processes that compile kernels for a GPU; that takes seconds, in which the model loads."""
    from torch._inductor import async_compile

    start = getattr(async_compile, "maybe_warm_pool", None)  # older versions start them at this import
    if start is not None:
        start()


def compile_blocks(module: Any) -> Any:
    """Compile each transformer block at its first call, once for all lengths; returns the module."""
    from agentrl.training.parallel.fsdp import blocks

    compiled = Compiled()
    for _, block in blocks(module):
        block._compiled_call_impl = CompiledBlock(block, compiled)
    module.compiled = compiled
    return module


def compiled_state(module: Any) -> "Compiled | None":
    """Of a model with compiled blocks, sharded or not; None for another."""
    from agentrl.training.parallel.shards import unwrapped

    state: Compiled | None = getattr(unwrapped(module), "compiled", None)
    return state


class BackwardFailed(Exception):
    """A backward pass of compiled blocks fails: torch.compile may compile it as late as there."""


def backward(module: Any, loss: Tensor, ranks: Ranks) -> None:
    """Backpropagate a rank's part of a loss. Raises BackwardFailed where the pass may succeed uncompiled."""
    compiled = compiled_state(module)
    try:
        ranks.backward(loss)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if compiled is None or not compiled.works or ranks.world > 1:  # other ranks would not take it again
            raise
        compiled.give_up(error)
        raise BackwardFailed from error


class Compiled:
    """Whether the blocks of a model run compiled."""

    def __init__(self) -> None:
        self.works = True

    def give_up(self, error: Exception) -> None:
        """Run all blocks uncompiled from now on, and say why once."""
        if self.works:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            log.warning("torch.compile fails, the model runs uncompiled: %s", reason[:300])
        self.works = False


class CompiledBlock:
    """The call of a block: compiled where that works."""

    def __init__(self, block: nn.Module, compiled: Compiled) -> None:
        self.block = block
        self.compiled = compiled
        # Lengths are symbols from the first call on: passes differ in their lengths.
        self.call: Any = torch.compile(block._call_impl, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.compiled.works:
            return self.block._call_impl(*args, **kwargs)
        try:
            return self.call(*args, **kwargs)
        except TorchDynamoException as error:  # no compiler, no Triton, or a model that it does not understand
            self.compiled.give_up(error)
        return self.block._call_impl(*args, **kwargs)
