"""verl's own functions, taken one by one out of its installed package, whose imports the tests need not have."""

import ast
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
import torch

VERL = Path(sys.prefix) / "reference/verl"
needs_verl = pytest.mark.skipif(not VERL.is_dir(), reason="make setup installs verl's package for reference")
TYPES = {"Any": Any, "Optional": Optional, "DataProto": Any, "ActorConfig": Any, "AlgoConfig": Any}


def functions(file: str, names: Iterable[str], **more: Any) -> SimpleNamespace:
    """The top-level functions and constants `names` of a file of verl's, without their decorators."""
    source = (VERL / file).read_text(encoding="utf-8")
    space: dict[str, Any] = {"torch": torch, "math": math} | TYPES | more
    for node in ast.parse(source).body:
        if not set(_bound(node)) & set(names):
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) == "dataclass"]
        exec(compile(ast.Module([node], []), file, "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


def masked() -> SimpleNamespace:
    """The helpers that verl calls verl_F."""
    return functions("utils/torch_functional.py", ("masked_sum", "masked_mean"))


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
