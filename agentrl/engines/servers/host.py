"""A server's machine: packages of its interpreter, and its GPU. Nothing is imported to find them.

An interpreter is asked by running this file in it, which prints the answer as JSON: standard library only.

    python - PACKAGE... < host.py
"""

import ctypes
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

ASK_SECONDS = 30.0
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def package_folder(name: str) -> str:
    """Folder of a package, or ""; a top-level name is found without importing it."""
    spec = importlib.util.find_spec(name)
    return next(iter(spec.submodule_search_locations or ()), "") if spec else ""


def cuda() -> "ctypes.CDLL | None":
    """CUDA's library, ready for questions; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return None if library.cuInit(0) else library


def gpu_count() -> int:
    """Number of GPUs that this process may use."""
    count, library = ctypes.c_int(), cuda()
    return 0 if library is None or library.cuDeviceGetCount(ctypes.byref(count)) else count.value


def first_gpu() -> "tuple[list[int], int]":
    """Compute capability and bytes of the first GPU. Takes none of its memory: no context is made."""
    major, minor, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    library = cuda()
    if library is None or library.cuDeviceGet(ctypes.byref(device), 0):
        return [0, 0], 0
    library.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return [major.value, minor.value], size.value


def compiles() -> bool:
    """Whether nvcc and ninja are found."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    paths = os.pathsep.join([os.environ.get("PATH", ""), os.path.join(home, "bin"), os.path.dirname(sys.executable)])
    return all(shutil.which(program, path=paths) for program in ("nvcc", "ninja"))


@dataclass(frozen=True)
class Host:
    """Packages and GPU of a server's machine; without an answer, there are none."""

    packages: Mapping[str, Path] = field(default_factory=dict)
    """Folder of each package that can be imported."""
    capability: tuple[int, int] = (0, 0)
    """Compute capability of the GPU; (0, 0): unknown."""
    memory: int = 0
    """Bytes of the GPU; 0: unknown."""
    compiles: bool = False
    """Kernels can be compiled there: nvcc and ninja are found."""

    def has(self, package: str, pattern: str = "") -> bool:
        """Whether the package is there, with a file that matches."""
        folder = self.packages.get(package)
        return folder is not None and (not pattern or any(True for _ in folder.glob(pattern)))

    def mentions(self, package: str, word: str, *patterns: str) -> bool:
        """Whether one of the package's files contains the word."""
        folder = self.packages.get(package)
        files = [] if folder is None else [file for pattern in patterns for file in folder.glob(pattern)]
        return any(word in file.read_text(errors="replace") for file in files)


@cache
def inspect_host(python: str, *packages: str) -> Host:
    """Ask an interpreter of this machine; takes about as long as Python's start."""
    command = [python, "-", *packages]  # from stdin: so the path of modules is that of `python -m`, as for the server
    # Ray hides the GPUs from the actor that starts a server on them; those of a machine are alike.
    seeing = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    question = Path(__file__).read_bytes()
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=ASK_SECONDS, check=True, env=seeing)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.debug("%s does not say what it has: %s", python, error)
        return Host()
    folders = {name: Path(folder) for name, folder in found["packages"].items() if folder}
    return Host(folders, tuple(found["capability"]), found["memory"], found["compiles"])


if __name__ == "__main__":
    capability, memory = first_gpu()
    packages = {name: package_folder(name) for name in sys.argv[1:]}
    answer = {"packages": packages, "capability": capability, "memory": memory, "compiles": compiles()}
    sys.stdout.write(json.dumps(answer))
