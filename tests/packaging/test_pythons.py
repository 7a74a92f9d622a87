"""`pip install agentrl` into a new environment of each Python, from the wheel and from the sdist, then a first run.

Needs the interpreters, minutes, and a package index. AGENTRL_VENVS names a folder where the environments are kept.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH = os.environ.get("TORCH", "torch==2.13.0")
SMALL = [
    "--config-name=tiny",
    "model.path=model",
    "data.train_files=data/train.parquet",
    "data.val_files=data/val.parquet",
    "data.train_batch_size=2",
    "actor.ppo_mini_batch_size=2",
    "rollout.n=2",
    "data.max_response_length=16",
    "trainer.total_training_steps=2",
    "trainer.device=cpu",
]
STEPS = [
    ["--version"],
    ["--help"],
    ["data", "arithmetic", "--out", "data", "--difficulty", "tiny", "--train", "8", "--val", "4", "--demos", "100"],
    ["model", "tiny", "model", "--tokenizer-data", "data/sft.jsonl"],
    ["doctor", *SMALL],
    ["train", *SMALL],
]


def interpreter(version: str) -> str | None:
    """On the PATH, or among pyenv's."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    return str(installed[-1]) if installed else shutil.which(f"python{version}")


def succeed(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    texts = [str(part) for part in command]
    done = subprocess.run(texts, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{texts}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    succeed(sys.executable, "-m", "hatchling", "build", "--directory", out, cwd=ROOT)
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


def environment(version: str, folder: Path) -> Path:
    """The interpreter of an environment with PyTorch."""
    python = folder / f"py{version}" / "bin" / "python"
    if not python.exists():
        found = interpreter(version) or pytest.skip(f"no Python {version}")
        succeed(found, "-m", "venv", python.parents[1], cwd=folder)
        succeed(python, "-m", "pip", "install", "--quiet", TORCH, cwd=folder)
    return python


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_first_run(
    version: str, kind: str, built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    kept = os.environ.get("AGENTRL_VENVS")
    python = environment(version, Path(kept) if kept else tmp_path_factory.getbasetemp())
    pip = (python, "-m", "pip", "--quiet")
    succeed(*pip, "uninstall", "--yes", "agentrl", cwd=tmp_path)
    constraints = ("--constraint", ROOT / "constraints.txt")
    succeed(*pip, "install", *constraints, built[kind], TORCH, cwd=tmp_path)
    for words in STEPS:
        said = succeed(python.parent / "agentrl", *words, cwd=tmp_path)
    assert "newest checkpoint" in said
    assert (tmp_path / "runs/tiny/checkpoints/global_step_2").is_dir()
