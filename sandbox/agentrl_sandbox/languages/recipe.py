"""Recipes: how a language is compiled and run. Each language has a module beside this one.

Invariant: a recipe is plain data; `locate` finds its programs on the host.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from agentrl_sandbox.job import Unavailable

PYTHON = "python3"
"""Placeholder in `needs`, `compile` and `run` for the pool's Python."""

HEAP = "{heap_mb}"
"""Placeholder in `compile` and `run` for the MiB of the runtime's heap."""


def identity(code: str) -> str:
    """The code, unchanged."""
    return code


@dataclass(frozen=True)
class Recipe:
    """A language. Commands run in the work folder, where `source` is; their first word is a program of `needs`."""

    name: str
    source: str
    """Name of the file that the code is written to."""
    run: tuple[str, ...]
    needs: tuple[str, ...]
    """Programs that must be on PATH."""
    hello: str
    """The self-test: a program that reads standard input and prints `expected`."""
    compile: tuple[str, ...] | Callable[[str], tuple[str, ...]] | None = None
    """The compiler's command; a function gets the code."""
    prepare: Callable[[str], str] = identity
    """Changes the code before it is written."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""
    modules: tuple[str, ...] = ()
    """Python modules that must be installed."""
    folders: Callable[[], tuple[str, ...]] = tuple
    """Folders that are searched before PATH."""
    zygote: bool = False
    """A fork of the zygote may run it instead of `run`."""
    stdin: bytes = b"19 23\n"
    """Standard input of the self-test."""
    expected: bytes = b"42\n"
    """A part of the self-test's output."""

    def compile_command(self, code: str) -> tuple[str, ...] | None:
        """The compiler's command for this code; None without a compiler."""
        return self.compile(code) if callable(self.compile) else self.compile

    def locate(self, python: str | None = None) -> dict[str, str]:
        """{program: absolute path}; `python`: the pool's. Raises Unavailable."""
        path = os.pathsep.join([*self.folders(), os.environ.get("PATH", os.defpath)])
        found = {name: shutil.which(name, path=path) for name in self.needs}
        if PYTHON in found and python is not None:
            found[PYTHON] = python
        missing = [name for name, where in found.items() if where is None]
        interpreter = found.get(PYTHON)
        if not missing and self.modules and interpreter is not None:
            missing = list(missing_modules(interpreter, self.modules))
        if missing:
            raise Unavailable(f"language not installed: {self.name} (needs {', '.join(missing)})")
        return {name: where for name, where in found.items() if where is not None}


@cache
def missing_modules(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """The modules that this interpreter lacks."""
    ask = "import sys, importlib.util as u; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"
    answer = subprocess.run([python, "-c", ask, *modules], capture_output=True, text=True, check=False)
    return tuple(answer.stdout.split()) if answer.returncode == 0 else modules
