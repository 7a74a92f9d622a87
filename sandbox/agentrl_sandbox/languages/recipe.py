"""How a language is built and run: one recipe each, in a module of its own beside this one.

Invariant: a recipe is plain data about a language; where its programs lie is found out on the host, at `locate`.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from agentrl_sandbox.job import Unavailable

PYTHON = "python3"
"""In `needs`, `compile` and `run` it stands for the Python that the pool was given."""

HEAP = "{heap_mb}"
"""In `compile` and `run` it stands for the MiB that the heap of the language's runtime may take."""


def identity(code: str) -> str:
    """The code as it is."""
    return code


@dataclass(frozen=True)
class Recipe:
    """A language. Commands run in the work folder, where `source` is; their first word is a program of `needs`."""

    name: str
    source: str
    """Name of the file that the code is written to."""
    run: tuple[str, ...]
    needs: tuple[str, ...]
    """Programs on PATH without which the language is not there."""
    hello: str
    """The self-test: a program that reads standard input and prints `expected`."""
    compile: tuple[str, ...] | Callable[[str], tuple[str, ...]] | None = None
    """The compiler's command; a function gets the code."""
    prepare: Callable[[str], str] = identity
    """What becomes of the code before it is written."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beyond the usual ones."""
    modules: tuple[str, ...] = ()
    """Python modules without which the language is not there."""
    folders: Callable[[], tuple[str, ...]] = tuple
    """Folders to look for the programs in, before PATH."""
    zygote: bool = False
    """A pre-forked Python may run it in place of `run`."""
    stdin: bytes = b"19 23\n"
    """What the self-test reads."""
    expected: bytes = b"42\n"
    """What stands in the output of the self-test."""

    def compile_command(self, code: str) -> tuple[str, ...] | None:
        """The compiler's command for this code; None where nothing is compiled."""
        return self.compile(code) if callable(self.compile) else self.compile

    def locate(self, python: str | None = None) -> dict[str, str]:
        """Absolute path of each program it needs; `python` is the pool's own. Raises Unavailable."""
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
    """Those of `modules` that this interpreter does not have."""
    ask = "import sys, importlib.util as u; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"
    answer = subprocess.run([python, "-c", ask, *modules], capture_output=True, text=True, check=False)
    return tuple(answer.stdout.split()) if answer.returncode == 0 else modules
