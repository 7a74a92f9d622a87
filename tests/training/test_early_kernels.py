"""The attention kernel is compiled by another process while the run starts."""

import os
import sys
from pathlib import Path

import pytest

from agentrl.training.model.attention import early_kernels, fa4_kernels
from agentrl.training.model.attention.early_kernels import EarlyKernels, compile_early

pytestmark = pytest.mark.integration

HEADS = (16, 8, 128)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention could be there, and its compiled kernels have a folder."""
    monkeypatch.setattr(early_kernels, "find_spec", lambda name: name == "flash_attn")
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    for name in ("DIR", "ENABLED"):
        monkeypatch.setenv(f"{fa4_kernels.CACHE}_{name}", "")  # so that it is put back
        monkeypatch.delenv(f"{fa4_kernels.CACHE}_{name}")


def test_a_process_gets_the_heads_and_the_folder(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    program = "import os, sys; open({!r}, 'w').write(str([*sys.argv[1:], os.environ[{!r}]]))"
    (tmp_path / "kernels.py").write_text(program.format(str(said), f"{fa4_kernels.CACHE}_DIR"))
    monkeypatch.setattr(early_kernels, "PROGRAM", "kernels")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kernels = compile_early(HEADS, 9)
    kernels.wait()
    assert said.read_text() == str(["16", "8", "128", str(tmp_path / "cache/flash_attention")])
    kernels.close()


@pytest.mark.parametrize("reason", ["no heads", "an older GPU", "not installed", "nothing is kept", "no folder"])
def test_nothing_starts_where_nothing_would_come_of_it(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "not installed":
        monkeypatch.setattr(early_kernels, "find_spec", lambda name: None)
    if reason == "nothing is kept":
        monkeypatch.setenv(f"{fa4_kernels.CACHE}_ENABLED", "0")
    if reason == "no folder":
        (tmp_path / "cache").touch()
    found = compile_early(None if reason == "no heads" else HEADS, 8 if reason == "an older GPU" else 9)
    assert found == EarlyKernels()
    found.wait()
    found.close()


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_kernels, "LONGEST", 0.1)
    process = early_kernels.subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    EarlyKernels(process).wait()
    assert process.returncode is not None
    assert not os.path.exists(f"/proc/{process.pid}/cmdline")
