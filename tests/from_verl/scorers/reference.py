"""verl's own scorers, loaded out of its installed package without the imports of the rest of verl."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

REFERENCE = Path(sys.prefix) / "reference"
PACKAGES = ("mathruler", "reference_reward_score")
NAMES = [
    "gsm8k",
    "math_reward",
    "math_dapo",
    "search_r1_like_qa_em",
    "prime_math",
    "math_verify",
    "geo3k",
    "math_batch",
]
needs_reference = pytest.mark.skipif(
    not (REFERENCE / "mathruler").is_dir(), reason="make setup installs verl and mathruler for reference"
)


@cache
def verl() -> ModuleType:
    """The package verl.utils.reward_score, under a name of its own."""
    # Without a process for each comparison; as a context manager it fails here as it does there.
    stand_ins = {
        "verl.utils.py_functional": SimpleNamespace(timeout_limit=lambda seconds, **_: lambda function: function),
        "verl.utils.import_utils": SimpleNamespace(deprecated=lambda *_: lambda function: function),
    }
    with mock.patch.dict(sys.modules, stand_ins):  # type: ignore[arg-type]
        _package("mathruler", REFERENCE / "mathruler", "grader")
        package = _package("reference_reward_score", REFERENCE / "verl/utils/reward_score", *NAMES)
        loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    sys.modules.update(loaded)
    return package


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a scorer says; "raises" where it does."""
    try:
        return function(*args, **kwargs)
    except Exception:
        return "raises"


def _package(name: str, folder: Path, *modules: str) -> ModuleType:
    file = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    for module in modules:
        importlib.import_module(f"{name}.{module}")
    return package
