"""Lets torchvision be imported beside a PyTorch without CUDA; on PYTHONPATH of a vLLM server on a CPU alone.

PyTorch's plain index has torchvision built for CUDA. Models that see need it, and of it nothing that was compiled; but
one of its modules describes compiled operators, which do not exist here, and that ends the import.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HIDDEN = "torchvision._meta_registrations"


class Finder:
    """Finds an empty module in its place."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == HIDDEN else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
