"""Compile a model's transformer blocks with torch.compile; a block that cannot be compiled runs as it is."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from agentrl.training.parallel.ranks import Ranks

log = logging.getLogger(__name__)

GRAPHS = 64
"""Most graphs of one function."""


def compiles(chosen: bool | None, device: torch.device, *, fused: bool = False) -> bool:
    """Whether blocks are compiled on `device`: as chosen; None: on a GPU, unless another package has `fused` them."""
    return device.type == "cuda" and not fused if chosen is None else chosen


def start_workers() -> None:
    """Start the processes that compile kernels for a GPU; that takes seconds, in which the model loads."""
    from torch._inductor import async_compile

    start = getattr(async_compile, "maybe_warm_pool", None)  # older versions start them at this import
    if start is not None:
        start()


def compile_blocks(blocks: Iterable[nn.Module]) -> "Compiled":
    """Compile each block at its first call, once for all lengths; returns their state."""
    # Beyond PyTorch's 8 a block runs uncompiled, with a mere warning. Each kind of block has graphs with and without
    # gradients, and sharding doubles them.
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
    compiled = Compiled()
    for block in blocks:
        block._compiled_call_impl = CompiledBlock(block, compiled)
        for part in block.modules():
            # peft's own forward makes a class at each call, and would be compiled again each time.
            if hasattr(part, "parameter_name") and "forward" not in vars(part):
                part.forward = torch.compiler.disable(part.forward)
    return compiled


class BackwardFailed(Exception):
    """A backward pass of compiled blocks fails: torch.compile may compile it as late as there."""


def backward(compiled: "Compiled | None", loss: Tensor, ranks: Ranks) -> None:
    """Backpropagate a rank's part of a loss. Raises BackwardFailed where the pass may succeed uncompiled.

    `compiled`: the state of the model's blocks; None: they are not compiled."""
    try:
        # Sharded models average gradients over ranks, and the loss is a sum over them.
        (loss * ranks.world if ranks.world > 1 else loss).backward()
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
