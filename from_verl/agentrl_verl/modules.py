"""verl's module names for what users' files import from it, where verl itself is not installed.

A tool that says `from verl.tools.base_tool import BaseTool` runs unchanged. Beside an installed verl the finder goes to
the end of `sys.meta_path`: it is asked only for modules that no one else has, so that verl wins, and the interactions
that it dropped in 0.8 are there. A mere folder `verl`, as a checkout has, does not win, for what verl itself needs is
not installed then; but modules of it that have no stand-in, such as a tool that someone put there, are found. Under
`agentrl verl`, which asks for `programs`, agentrl comes first, before an installed verl and a checkout. A name is
looked up when it is first asked for: one that needs PyTorch costs nothing to those who do not want it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from agentrl.core.foreign import read_beside
from agentrl_verl.programs import ancestry, programs_of, started_module

VERSION = "0.9.1"
"""The newest verl whose names are served."""
ALGORITHMS = "verl.trainer.ppo.core_algos"
"""Where users register estimators and losses."""


@cache
def table() -> Mapping[str, Mapping[str, tuple[str, str]]]:
    """By module of verl's and name in it: (module or ready-made file, name there)."""
    return {
        module: {
            theirs: (source, ours or theirs)
            for source, names in sources.items()
            for theirs, _, ours in (name.partition("=") for name in names.split())
        }
        for module, sources in read_beside(__file__, "modules.yaml").items()
    }


@cache
def packages() -> frozenset[str]:
    """Modules that have others below them."""
    return frozenset(name.rpartition(".")[0] for module in table() for name in ancestry(module) if "." in name)


def ready_made(class_name: str) -> tuple[str, str] | None:
    """(file among the ready-made ones, class) for a class of verl's that has a counterpart there."""
    module, _, name = class_name.rpartition(".")
    source, ours = table().get(module, {}).get(name, ("", ""))
    return (source, ours) if source.endswith(".py") else None


class VerlModules(MetaPathFinder, Loader):
    """Finds and makes the modules; with `programs` also those that are run with `python -m`."""

    def __init__(self, *, programs: bool = False, others: bool = False) -> None:
        """`others`: not verl's names, but those that its files import besides."""
        self.programs = programs_of(sys.orig_argv) if programs else frozenset()
        self.others = others

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for verl's modules that users' files import; None for all others."""
        leads_on = any(name.startswith(f"{fullname}.") for name in self.programs)
        ours = fullname.partition(".")[0] == "verl" or leads_on or fullname in self.programs
        if ours is self.others:
            return None
        package = fullname in packages() or leads_on
        if fullname not in table() and not package and fullname not in self.programs:
            return None
        spec = ModuleSpec(fullname, self, origin="agentrl", is_package=package)
        if package:
            folders = (Path(place or ".", *fullname.split(".")) for place in sys.path)
            spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        return spec

    def get_code(self, fullname: str) -> CodeType:
        """What `python -m` runs."""
        program = f"import sys; from agentrl_verl.programs import run; sys.exit(run({fullname!r}, sys.argv[1:]))"
        return compile(program, f"<{fullname}>", "exec")

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The usual kind of module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Let it find its names when they are asked for."""
        name = module.__name__

        def find(attribute: str) -> Any:
            value = _look_up(name, attribute)
            setattr(module, attribute, value)
            return value

        vars(module).update(__getattr__=find, __all__=[*table().get(name, ())])


class UnknownPrograms(VerlModules):
    """The last to be asked: a program of verl's that nobody has is run, and says that it is not served."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for the module that `python -m` names, and the packages around it."""
        started = started_module(sys.orig_argv)
        if started.partition(".")[0] not in ("verl", "recipe") or not f"{started}.".startswith(f"{fullname}."):
            return None
        return ModuleSpec(fullname, self, origin="agentrl", is_package=fullname != started)


def provide(*, programs: bool = False) -> None:
    """Make the names importable from now on; again is fine."""
    if any(isinstance(finder, VerlModules) for finder in sys.meta_path):
        return
    place = len(sys.meta_path) if _installed() and not programs else 0
    sys.meta_path.insert(place, VerlModules(programs=programs))
    sys.meta_path.append(VerlModules(others=True))  # at the end: what is installed wins
    if programs:
        sys.meta_path.append(UnknownPrograms())


def adopt_registered() -> None:
    """Take over the estimators and losses that users' modules registered with an installed verl."""
    theirs = sys.modules.get(ALGORITHMS)
    if theirs is None or isinstance(theirs.__loader__, VerlModules):
        return
    from agentrl_verl import estimators, policy_losses  # torch comes with them

    registries = {"ADV_ESTIMATOR_REGISTRY": estimators.adopt, "POLICY_LOSS_REGISTRY": policy_losses.adopt}
    for registry, adopt in registries.items():
        for name, function in getattr(theirs, registry, {}).items():
            if not function.__module__.startswith("verl."):
                adopt(name, function)


def _installed() -> bool:
    try:
        return bool(version("verl"))
    except PackageNotFoundError:
        return False


def _look_up(module: str, name: str) -> Any:
    """The object that stands for a name of verl's. Raises AttributeError, which `from ... import` words itself."""
    from agentrl.core.resources import load_module, share

    source, ours = table().get(module, {}).get(name, ("", ""))
    if not source:
        raise AttributeError(f"agentrl, which stands in for verl, has no {module}.{name}")
    found = load_module(share() / source) if source.endswith(".py") else importlib.import_module(source)
    return getattr(found, ours)
