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
TYPES = {"Any": Any, "Optional": Optional, "DataProto": Any, "ActorConfig": Any, "AlgoConfig": type(None)}


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


def rollout_correction() -> SimpleNamespace:
    """verl's rollout correction."""
    file = "trainer/ppo/rollout_corr_helper.py"
    tree = ast.parse((VERL / file).read_text(encoding="utf-8"))
    names = [name for node in tree.body for name in _bound(node)]
    config = {"RolloutCorrectionConfig": Any, "PolicyLossConfig": Any}
    return functions(file, names, verl_F=masked(), **config | {"DataProto": Proto})


class Proto:
    """As much of verl's DataProto as its helper uses."""

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self.batch = batch

    @staticmethod
    def from_dict(tensors: dict[str, torch.Tensor]) -> "Proto":
        return Proto(tensors)
