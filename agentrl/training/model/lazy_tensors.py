"""Tensors in a model's files, read when their values are asked for: whole, or a part.

transformers converts weights as it loads them: it casts, stacks experts, joins and splits projections. It does so with
lazy tensors as with others, and a parameter of the loaded model is a lazy tensor that knows its operations.

Invariants:
- a part has the values of the whole tensor bit for bit, whatever the operations are;
- casts, stacks and concatenations read only what a part needs. Other operations are computed whole; where they are
  views of a file, this reads no more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import modeling_utils

aten = torch.ops.aten
Box = tuple[slice, ...]
"""A range of each dimension."""


@contextmanager
def lazy_loading(*, first: bool) -> Iterator[None]:
    """Let `from_pretrained` give lazy tensors while the body runs.

    A quantised model, whose weights transformers dequantises as it loads them, has its weights on the `first` rank and
    is on the meta device elsewhere.
    """
    load = modeling_utils.convert_and_load_state_dict_in_model

    def load_lazily(*, state_dict: dict[str, Any], load_config: Any, **arguments: Any) -> Any:
        if load_config.hf_quantizer is None:
            state_dict = {name: LazyTensor.of(source) for name, source in state_dict.items()}
        elif not first:
            load_config = replace(load_config, device_map={"": "meta"})
        return load(state_dict=state_dict, load_config=load_config, **arguments)

    with patch.object(modeling_utils, load.__name__, load_lazily):
        yield


class LazyTensor(Tensor):
    """A tensor in CPU memory, as far as others see it, whose values are still in files.

    A copy into it takes the place of its values; nothing else writes it.
    """

    @staticmethod
    def __new__(cls: Any, like: Tensor, compute: Callable[[Box], Tensor]) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, like.shape, like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )

    def __init__(self, like: Tensor, compute: Callable[[Box], Tensor]) -> None:
        """`like`: a tensor of its shape and dtype on the meta device; `compute`: the values in a box."""
        self.compute = compute

    @classmethod
    def of(cls, source: Any) -> "LazyTensor":
        """`source`: a slice of a safetensors file, or a tensor whose file is mapped into memory."""
        shape = source.shape if isinstance(source, Tensor) else source.get_shape()
        dtype = source[(slice(0, 0),) * len(shape)].dtype
        return cls(torch.empty(shape, dtype=dtype, device="meta"), source.__getitem__)

    def part(self, box: Box) -> Tensor:
        """The values in a box that is not empty; it may be a view of a file."""
        return self.compute(box).to(self.dtype)  # the dtype changes where `data` is set

    def whole(self) -> Tensor:
        """All values."""
        return self.part(tuple(slice(0, size) for size in self.shape))

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = self.clone()
        return nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # a class method, as PyTorch wants
        kwargs = kwargs or {}
        if func is aten.copy_.default and isinstance(args[0], cls):  # peft fills its copy of a layer
            source = args[1]
            args[0].compute = source.part if isinstance(source, cls) else source.detach().clone().__getitem__
            return args[0]
        outputs = _outputs_on_meta(func, args, kwargs)
        if isinstance(outputs, Tensor):
            return cls(outputs, _computing(func, args, kwargs))
        if isinstance(outputs, list | tuple):
            return [cls(output, _computing(func, args, kwargs, i)) for i, output in enumerate(outputs)]
        return func(*_read(args), **_read(kwargs))


def _outputs_on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of an operation without values; None where it has to be computed now."""
    if func._schema.is_mutable and isinstance(args[0], LazyTensor):
        raise TypeError(f"{func}: the tensor is in a file")
    if func._schema.is_mutable or torch.device(kwargs.get("device") or "cpu").type != "cpu":
        return None
    try:
        return func(*_on_meta(args), **_on_meta(kwargs | dict.fromkeys(kwargs.keys() & {"device"}, "meta")))
    except Exception:  # it depends on values, or on tensors that are not lazy
        return None


def _on_meta(tree: Any) -> Any:
    empty = partial(torch.empty_strided, device="meta")
    return tree_map_only(LazyTensor, lambda t: empty(t.shape, t.stride(), dtype=t.dtype), tree)


def _read(tree: Any) -> Any:
    return tree_map_only(LazyTensor, LazyTensor.whole, tree)


def _computing(func: Any, args: Any, kwargs: Any, index: int = 0) -> Callable[[Box], Tensor]:
    """Computes a part of an operation's output `index`."""
    if func in POINTWISE:
        return lambda box: func(args[0].part(box), *args[1:], **kwargs)
    if func in PARTS:
        return lambda box: PARTS[func](box, *args)

    def compute(box: Box) -> Tensor:
        outputs = func(*_read(args), **_read(kwargs))
        return (outputs[index] if isinstance(outputs, list | tuple) else outputs)[box]

    return compute


def _stack(box: Box, sources: list[LazyTensor], dim: int = 0) -> Tensor:
    dim %= len(box)
    return torch.stack([source.part(box[:dim] + box[dim + 1 :]) for source in sources[box[dim]]], dim)


def _concatenate(box: Box, sources: list[LazyTensor], dim: int = 0) -> Tensor:
    dim %= len(box)
    parts, start = [], 0
    for source in sources:
        size = source.shape[dim]
        low, high = max(box[dim].start - start, 0), min(box[dim].stop - start, size)
        if low < high:
            parts.append(source.part((*box[:dim], slice(low, high), *box[dim + 1 :])))
        start += size
    return torch.cat(parts, dim)


POINTWISE = (aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default)
PARTS: dict[Any, Callable[..., Tensor]] = {aten.stack.default: _stack, aten.cat.default: _concatenate}
"""Operations of which a part is computed from parts of the inputs."""
