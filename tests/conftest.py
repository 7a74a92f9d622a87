"""Settings that hold for every test: no model hub, and a thread count that does not depend on the machine."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.sandbox.docker.engine import Engine, Unavailable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # else a test beside it starves what it waits for


HANGS = 240
"""Seconds after which a test that `make test` runs has hung, also on a busy machine; the limit of others is longer."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End a test that waits for good before it delays the whole suite by the limit of the slow ones."""
    longer = "slow", "gpu", "docker", "engine", "agents", "timeout"
    for item in items:
        if not any(item.get_closest_marker(name) for name in longer):
            item.add_marker(pytest.mark.timeout(HANGS))


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    """A run in this process sets PyTorch up for itself; other tests find it as it was."""
    before = _tuning() or (1, "none")
    yield
    if _tuning() not in (None, before):
        import torch

        torch.set_num_threads(before[0])
        torch.backends.mkldnn.matmul.fp32_precision = before[1]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine. Skips, with a line that says why, where none can be had."""
    try:
        found = Engine()
    except Unavailable as error:
        pytest.skip(f"no Docker: {error}")
    yield found
    found.close()


@pytest.fixture
def docker_host(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the `docker` package find it."""
    if "DOCKER_HOST" in engine.env:
        monkeypatch.setenv("DOCKER_HOST", engine.env["DOCKER_HOST"])


def _tuning() -> tuple[int, str] | None:
    """Threads and precision, where PyTorch is loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return None
    return torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision
