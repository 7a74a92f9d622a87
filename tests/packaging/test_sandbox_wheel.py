"""The sandbox's own wheel: it works without agentrl, torch and any dependency, and agentrl ships the same package."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import agentrl
import agentrl_sandbox

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DEPENDENCIES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, ROOT / "sandbox"]
    subprocess.run(build, env=os.environ | {"PYTHONPATH": DEPENDENCIES}, check=True, timeout=600)
    (built,) = out.glob("agentrl_sandbox-*.whl")
    return built


def test_a_program_runs_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(int(input()) * 2)")
    # -S: no site-packages, so that whatever the wheel does not hold is missing.
    start = [sys.executable, "-S", "-m", "agentrl_sandbox"]
    done = subprocess.run(
        [*start, "run", "program.py", "--stdin", "21"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _unpacked(wheel, tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_both_wheels_hold_the_same_package() -> None:
    alone = tomllib.loads((ROOT / "sandbox" / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert agentrl_sandbox.__version__ == agentrl.__version__
    assert alone["optional-dependencies"]["server"] == whole["optional-dependencies"]["sandbox"]
    assert (ROOT / "sandbox" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def _unpacked(wheel: Path, folder: Path) -> str:
    zipfile.ZipFile(wheel).extractall(folder)
    return str(folder)
