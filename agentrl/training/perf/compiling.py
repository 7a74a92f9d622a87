"""Compile a model's transformer blocks with torch.compile; a block that cannot be compiled runs as it is."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

log = logging.getLogger(__name__)

PER_KIND = 2
"""Blocks of one kind that `representative` runs: the first may get an input without a gradient, the second not."""

UNCOMPILED: ContextVar[bool] = ContextVar("uncompiled", default=False)


def compiles(chosen: bool | None, device: torch.device) -> bool:
    """Whether blocks are compiled on `device`: as chosen; None: on a GPU."""
    return device.type == "cuda" if chosen is None else chosen


def compile_blocks(module: Any) -> Any:
    """Compile each transformer block at its first call, once for all lengths; returns the module."""
    from agentrl.training.parallel.fsdp import blocks

    compiled = Compiled()
    for _, block in blocks(module, 0):
        block._compiled_call_impl = CompiledBlock(block, compiled)
    module.compiled = compiled
    return module


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compiled blocks run uncompiled in this thread while the body runs: for a few passes, compiling takes longer."""
    token = UNCOMPILED.set(True)
    try:
        yield
    finally:
        UNCOMPILED.reset(token)


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
        if UNCOMPILED.get() or not self.compiled.works:
            return self.block._call_impl(*args, **kwargs)
        try:
            return self.call(*args, **kwargs)
        except TorchDynamoException as error:  # no compiler, no Triton, or a model that it does not understand
            self.compiled.give_up(error)
        return self.block._call_impl(*args, **kwargs)


def compiled_blocks(module: Any) -> list[nn.Module]:
    """The modules that are compiled, in the order of the forward pass."""
    return [part for part in module.modules() if part._compiled_call_impl is not None]


@contextmanager
def representative(blocks: list[nn.Module]) -> Iterator[None]:
    """While the body runs, only the first blocks of each kind run; the others return their input.

    A pass then has the memory of a few blocks, and compiles as much as a whole one.
    """
    first = _first_of_each_kind(blocks)
    calls = {block: block._compiled_call_impl for block in blocks}
    skip = _Skip()
    try:
        for block in blocks:  # no hooks: compiled code depends on those
            block._compiled_call_impl = skip.noting(calls[block]) if block in first else skip
        yield
    finally:
        for block, call in calls.items():
            block._compiled_call_impl = call


def _first_of_each_kind(blocks: list[nn.Module]) -> list[nn.Module]:
    kinds: dict[Any, list[nn.Module]] = {}
    for block in blocks:
        kinds.setdefault(_kind(block), []).append(block)
    return [block for same in kinds.values() for block in same[:PER_KIND]]


def _kind(block: nn.Module) -> tuple[Any, ...]:
    """Equal for blocks that share their compiled code."""
    return getattr(block, "attention_type", None), *(type(part) for part in block.modules())


class _Skip:
    """Stands in for a block: returns its input, in a tuple where the model's blocks return one."""

    def __init__(self) -> None:
        self._tuples = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden,) if self._tuples else hidden

    def noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with a note of the kind of its result."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            self._tuples = isinstance(output, tuple)
            return output

        return noted
