"""Lets SGLang's server start on a machine without a GPU; on PYTHONPATH of that server alone.

SGLang imports its GPU kernel packages unconditionally, and on a CPU calls none of them: its layers have native PyTorch
forms. Each missing package becomes a module of names that do nothing. A sitecustomize, because the scheduler is a
process of its own that Python starts afresh.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HONEST = ("driver",)  # SGLang asks triton's driver for the device, and falls back to the CPU when there is none
os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compiling needs the real triton, or a C++ compiler


class Nothing:
    """Stands for a function, a class, a decorator or a constant that nobody will use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorated = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorated else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in HONEST:
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class Absent(ModuleType):
    """A package of nothing; a capitalised name is a class, for someone derives from it."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in HONEST:
            raise AttributeError(name)
        value = type(name, (Nothing,), {}) if name[0].isupper() else Nothing()
        setattr(self, name, value)
        return value


class Finder:
    """Finds an absent module for each of the given names and for those below them."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        wanted = any(name == own or name.startswith(f"{own}.") for own in self.names)
        return importlib.util.spec_from_loader(name, self, is_package=True) if wanted else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Runtime:
    """Stands for CUDA's runtime: it pins no memory."""

    @staticmethod
    def cudaHostRegister(*_: Any) -> int:
        return 0


class Unpinned:
    """Finds nothing; when SGLang's LoRA or its record of experts is looked for, has torch take plain memory for pinned,
    which no CPU has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name not in ("sglang.srt.lora", "sglang.srt.state_capturer"):
            return
        import torch

        torch.cuda.cudart = Runtime

        def unpinned(make: Any) -> Any:
            return lambda *args, pin_memory=False, **kwargs: make(*args, **kwargs)

        for maker in ("tensor", "zeros", "empty"):
            setattr(torch, maker, unpinned(getattr(torch, maker)))
        torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]


sys.meta_path.insert(0, Unpinned())
# First, for it hides a real module: torchvision built for CUDA describes operators that do not exist on a CPU.
sys.meta_path.insert(0, Finder("torchvision._meta_registrations"))
sys.meta_path.append(Finder("triton", "sgl_kernel", "flashinfer", "vllm", "xgrammar"))  # last: the real ones win
