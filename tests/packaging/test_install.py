"""agentrl works from a wheel in an empty folder, and from an editable install: commands, configs, ready-made tools.

Dependencies come from the environment that runs the tests; agentrl itself comes from what was built.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DEPENDENCIES = sysconfig.get_path("purelib")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
TRAIN = (
    "train",
    "--cfg",
    "job",
    "rollout.multi_turn.enable=true",
    "rollout.multi_turn.tool_config_path=tools/calculator.yaml",
    "rollout.multi_turn.interaction_config_path=interactions/checker.yaml",
    "data.train_files=rows/train.parquet",
)


def run(*command: object, cwd: Path, path: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    texts = [str(part) for part in command]
    return subprocess.run(texts, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)


def succeed(*command: object, cwd: Path, path: str) -> str:
    done = run(*command, cwd=cwd, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    succeed(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, ROOT, cwd=out, path=DEPENDENCIES)
    (built,) = out.glob("agentrl-*.whl")
    return built


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    python = (sys.executable, "-m", "hatchling", "build", "--target")
    succeed(*python, "sdist", "--directory", tmp_path, cwd=ROOT, path=DEPENDENCIES)
    (source,) = tmp_path.glob("agentrl-*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / source.name.removesuffix(".tar.gz")
    succeed(*python, "wheel", "--directory", tmp_path, cwd=folder, path=DEPENDENCIES)
    (built,) = tmp_path.glob("agentrl-*.whl")
    assert built.name == wheel.name
    assert zipfile.ZipFile(built).namelist() == zipfile.ZipFile(wheel).namelist()
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "tests", "docs"} <= {file.name for file in folder.iterdir()}


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed apart from everything else."""
    target = tmp_path_factory.mktemp("site")
    succeed(*PIP, "install", "--no-deps", "--target", target, wheel, cwd=target, path=DEPENDENCIES)
    return target


def test_the_wheel_holds_package_and_ready_made_files_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "agentrl/py.typed",
        "agentrl_verl/reading/names.yaml",
        "agentrl_verl/reading/defaults.yaml",
        "agentrl_verl/reading/versions.yaml",
        "agentrl/share/configs/train.yaml",
        "agentrl/share/configs/algorithm/grpo.yaml",
        "agentrl/share/configs/templates/chatml_tools.jinja",
        "agentrl/share/tools/calculator.yaml",
        "agentrl/share/tools/calculator.py",
        "agentrl/share/interactions/checker.yaml",
        "agentrl_sandbox/py.typed",
        "agentrl_sandbox/zygote/sitecustomize.py",
    } <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"agentrl", "agentrl_sandbox", "agentrl_verl"}
    assert not [name for name in names if "__pycache__" in name]


def check_installation(agentrl: Path, folder: Path, path: str, share: Path) -> None:
    """Look around, write rows, resolve a run that uses ready-made tools: all in an empty folder."""
    python = [sys.executable, "-c"]
    where = "import agentrl.core.resources; print(agentrl.core.resources.share())"
    assert succeed(*python, where, cwd=folder, path=path).strip() == str(share)
    assert "First steps" in succeed(agentrl, "--help", cwd=folder, path=path)
    succeed(agentrl, "data", "arithmetic", "--out", "rows", "--train", 4, "--val", 2, cwd=folder, path=path)
    done = run(agentrl, *TRAIN, cwd=folder, path=path)
    assert done.returncode == 0
    assert f"tool_config_path: {share / 'tools' / 'calculator.yaml'}" in done.stdout
    assert "not set: model.path" in done.stderr
    assert "data.train_files" not in done.stderr
    load = "from agentrl.tools import load_tools; print(load_tools('tools/calculator.yaml', None, max_response=99, "
    schemas = succeed(*python, load + "unit='characters', side='left').schemas(None))", cwd=folder, path=path)
    assert "calculator" in schemas


def test_a_wheel_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(site), DEPENDENCIES])
    check_installation(site / "bin" / "agentrl", tmp_path, path, site / "agentrl" / "share")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows"], "nothing is left lying about"


def test_an_editable_install(tmp_path: Path) -> None:
    """The checkout's own configs and tools are used, so that editing them has an effect."""
    venv = tmp_path / "venv"
    folder = tmp_path / "empty"
    folder.mkdir()
    succeed(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path, path="")
    pip = (*PIP, "--python", venv / "bin" / "python", "install", "--no-deps", "--no-build-isolation")
    succeed(*pip, "--editable", ROOT, cwd=tmp_path, path=DEPENDENCIES)
    assert not list(venv.glob("lib/*/site-packages/agentrl")), "no copies that grow old"
    where = "import agentrl.core.resources; print(agentrl.core.resources.share())"
    assert succeed(venv / "bin" / "python", "-c", where, cwd=folder, path="").strip() == str(ROOT)
    done = run(venv / "bin" / "agentrl", *TRAIN[:3], cwd=folder, path=DEPENDENCIES)
    assert done.returncode == 0, done.stderr
    assert "not set: model.path" in done.stderr
