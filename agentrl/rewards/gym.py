"""The reasoning-gym package behind one door: its data sets by name, and their own verdict on an answer.

Its __init__ imports every task, and with them packages that most tasks do without. Where one of those is missing,
only the module of the wanted task is imported, its parents standing in as empty packages.
"""

import importlib
import importlib.util
import json
import re
import sys
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.core.errors import UserError

PACKAGE = "reasoning_gym"


def make_dataset(name: str, **config: Any) -> Any:
    """The procedural data set called `name`. Raises UserError on an unknown name, option, or a missing package."""
    _register(name)
    factory = importlib.import_module(f"{PACKAGE}.factory")
    try:
        return factory.create_dataset(name, **config)
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(f"{PACKAGE}:{name} refuses {json.dumps(config)}: {error}") from None


def score_answer(note: dict[str, Any], answer: str) -> float:
    """The verdict, 0 to 1, on `answer` to a row's question; `note` is {name, config, entry}, the latter two JSON."""
    return float(_judge(note["name"], note["config"]).score_answer(answer, json.loads(note["entry"])))


@lru_cache(maxsize=64)
def _judge(name: str, config: str) -> Any:
    return make_dataset(name, **json.loads(config))


def _register(name: str) -> None:
    """Import the module that registers `name`."""
    known = _files(_root())
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.4)
        raise UserError(f"{PACKAGE} has no task {name!r}; near it: {', '.join(near) or 'none'}")
    with suppress(ModuleNotFoundError):
        importlib.import_module(PACKAGE)
    if name not in importlib.import_module(f"{PACKAGE}.factory").DATASETS:
        _import_alone(known[name], name)


def _root() -> Path:
    if PACKAGE in sys.modules:
        return Path(sys.modules[PACKAGE].__path__[0])
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the package reasoning-gym is not installed; run: pip install reasoning-gym")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=1)
def _files(root: Path) -> dict[str, Path]:
    """Task names and the files that define them."""
    named = ((re.search(r'^DATASET_NAME = "(\w+)"', file.read_text(), re.M), file) for file in root.rglob("*.py"))
    return {match[1]: file for match, file in named if match}


def _import_alone(file: Path, name: str) -> None:
    root = _root()
    parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
    for depth in range(1, len(parts)):
        stand_in = ModuleType(".".join(parts[:depth]))
        stand_in.__path__ = [str(root.joinpath(*parts[1:depth]))]
        sys.modules.setdefault(stand_in.__name__, stand_in)
    try:
        importlib.import_module(".".join(parts))
    except ModuleNotFoundError as error:
        raise UserError(f"{PACKAGE}:{name} needs the package {error.name}; run: pip install {error.name}") from None
