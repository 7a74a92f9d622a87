"""What an engine's server finds on its machine: packages of its interpreter, and the GPU. Nothing of it is imported."""

import json
import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

QUESTION = Path(__file__).parent / "host_question.py"
TIMEOUT = 30.0


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
def ask(python: str, *packages: str) -> Host:
    """Ask an interpreter of this machine; takes about as long as Python's start."""
    command = [python, "-", *packages]  # from stdin: so the path of modules is that of `python -m`, as for the server
    # Ray hides the GPUs from the actor that starts a server on them; those of a machine are alike.
    seeing = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    question = QUESTION.read_bytes()
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=TIMEOUT, check=True, env=seeing)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.debug("%s does not say what it has: %s", python, error)
        return Host()
    folders = {name: Path(folder) for name, folder in found["packages"].items() if folder}
    return Host(folders, tuple(found["capability"]), found["memory"], found["compiles"])
