"""Installs engines: a virtual environment each, with versions that were tested together."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.errors import UserError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One call of pip."""

    packages: tuple[str, ...]
    dependencies: bool = True
    """Whether pip installs their dependencies."""
    fallback: tuple[str, ...] = ()
    """Packages to install when pip finds none of these."""
    remove: tuple[str, ...] = ()
    """Dependencies to remove afterwards."""


@dataclass(frozen=True)
class Recipe:
    """How to install an engine."""

    packages: tuple[str, ...]
    """Its distributions; an environment has one of them."""
    gpu: tuple[Step, ...]
    cpu: tuple[Step, ...]
    pythons: tuple[tuple[int, int], ...] = ((3, 11), (3, 12))
    """Versions of Python that its wheels are for."""


RECIPES = {"sglang": "agentrl.engines.sglang.recipe", "vllm": "agentrl.engines.vllm.recipe"}
"""Engine -> module with its `RECIPE`."""


def install(name: str, folder: Path, *, cpu: bool, python: str | None, say: Say) -> None:
    """Make the environment `folder`; a second run completes an interrupted one. Raises UserError."""
    recipe: Recipe = importlib.import_module(RECIPES[name]).RECIPE
    base = python or sys.executable
    _check_python(base, recipe)
    say(f"{folder}: environment")
    _run([base, "-m", "venv", str(folder)], f"no environment can be made with {base}")
    for step in recipe.cpu if cpu else recipe.gpu:
        say(f"{folder}: {', '.join(step.packages)[:80]}")
        _take(step, folder, f"pip could not install {name}")


def _take(step: Step, folder: Path, failure: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    add = [*pip, "install", *([] if step.dependencies else ["--no-deps"])]
    try:
        _run([*add, *step.packages], failure)
    except UserError:
        if not step.fallback:
            raise
        _run([*add, *step.fallback], failure)
    if step.remove:
        _run([*pip, "uninstall", "--yes", *step.remove], failure)


def installed(folder: Path, name: str) -> str:
    """A line about an environment."""
    recipe: Recipe = importlib.import_module(RECIPES[name]).RECIPE
    python = folder / "bin" / "python"
    if not python.exists():
        return f"not installed; `agentrl engine install {name}` does it"
    versions = f"d.version for name in {recipe.packages} for d in m.distributions(name=name)"
    code = f"import importlib.metadata as m; print(*({versions}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return f"{done.stdout.strip()} in {folder}" if done.stdout.strip() else f"broken: install it again ({folder})"


def _check_python(base: str, recipe: Recipe) -> None:
    try:
        text = subprocess.run(
            [base, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"--python {base}: it does not run: {error}") from error
    version = tuple(map(int, text.split()))
    if version not in recipe.pythons:
        fit = " or ".join(f"{a}.{b}" for a, b in recipe.pythons)
        raise UserError(f"{base} is Python {version[0]}.{version[1]}: name one of {fit} with --python")


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no output"]
        raise UserError(f"{failure}: {errors[-1].removeprefix('ERROR: ')}")
