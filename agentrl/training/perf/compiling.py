"""Run a model with compiled blocks without compiling, or with a few of its blocks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from agentrl.core.grouping import grouped

PER_KIND = 2
"""Blocks of one kind that `representative` runs: the first may get an input without a gradient, the second not."""


def uncompiled() -> AbstractContextManager[object]:
    """While the body runs, compiled modules run as written; compiled code stays for later."""
    return torch.compiler.set_stance("force_eager")


def compiled_blocks(module: Any) -> list[nn.Module]:
    """The modules that are compiled, in the order of the forward pass."""
    return [part for part in module.modules() if part._compiled_call_impl is not None]


@contextmanager
def representative(blocks: list[nn.Module]) -> Iterator[None]:
    """While the body runs, only the first blocks of each kind run; the others return their input.

    A pass then has the memory of a few blocks, and compiles as much as a whole one.
    """
    first = [block for same in grouped(blocks, _kind).values() for block in same[:PER_KIND]]
    calls: dict[nn.Module, Any] = {block: block._compiled_call_impl for block in blocks}
    skip = _Skip()
    try:
        for block in blocks:  # no hooks: compiled code depends on those
            block._compiled_call_impl = skip.noting(calls[block]) if block in first else skip
        yield
    finally:
        for block, call in calls.items():
            block._compiled_call_impl = call


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
