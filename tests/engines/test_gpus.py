"""Which device there is, as PyTorch would say, without its import."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.core.errors import UserError
from agentrl.engines import gpus


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries of a PyTorch that says, when it is asked, that there is a GPU."""
    asked = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(gpus, "package_folder", lambda name: str(tmp_path / name))
    monkeypatch.setitem(sys.modules, "torch", asked)  # type: ignore[arg-type]
    made = tmp_path / "torch" / "lib"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("files", "number", "kind"),
    [
        (["libtorch_cpu.so", "libtorch_cuda.so"], 1, "cuda"),
        (["libtorch_cpu.so", "libtorch_cuda.so"], 0, "cpu"),
        (["libtorch_cpu.so", "libtorch_python.so"], 1, "cpu"),  # a build for CPUs
        (["libtorch_cpu.so", "libtorch_hip.so"], 0, "cuda"),  # PyTorch is asked
        (["libtorch_python.so"], 0, "cuda"),  # its libraries are elsewhere
    ],
)
def test_the_kind_is_that_of_pytorch(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], number: int, kind: str
) -> None:
    for name in files:
        (libraries / name).touch()
    monkeypatch.setattr(gpus, "gpu_count", lambda: number)
    assert gpus.device_kind("auto") == kind
    assert gpus.device_kind("cpu") == "cpu"
    if kind == "cuda":
        assert gpus.device_kind("cuda") == "cuda"
    else:
        with pytest.raises(UserError, match="set trainer.device=auto"):
            gpus.device_kind("cuda")


def test_gpus_are_named_as_the_user_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "gpu_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert gpus.visible_gpus() == ["GPU-a", "GPU-b"]
