"""Settings that hold for every test: no model hub, and a thread count that does not depend on the machine."""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from tests.sandbox.docker.engine import Engine, Unavailable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # else a test beside it starves what it waits for


HANGS = 240
"""Seconds after which a test that `make test` runs has hung, also on a busy machine; the limit of others is longer."""


SLOW_KINDS = "slow", "gpu", "docker", "engine", "agents"
_started: list[str] = []


def _noted(start: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any, **given: Any) -> Any:
        _started.append(start.__qualname__)
        return start(*args, **given)

    return noting


platform.platform()  # which starts a process the first time: clients of openai's ask for it
# Not by an audit hook: each import and open would run it, and the tests of slow code would find it on the stack.
subprocess.Popen.__init__ = _noted(subprocess.Popen.__init__)  # type: ignore[method-assign]
BaseProcess.start = _noted(BaseProcess.start)  # type: ignore[method-assign]
os.fork = _noted(os.fork)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: some tests wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Imports of hundreds of modules leave no garbage: without the collector they cost a third less."""
    gc.disable()
    found = yield
    gc.enable()
    gc.freeze()  # modules and tests stay until the end
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark unit tests, and end a test that hangs before it delays the suite by the limit of the slow ones. Files that
    start processes come first: at the end only quick ones are left, and no process waits long for the last."""
    long = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in long)
    for item in items:
        if any(item.get_closest_marker(name) for name in SLOW_KINDS):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS))
        if item.get_closest_marker("integration") is None:
            item.add_marker(pytest.mark.unit)


@pytest.fixture(autouse=True)
def unit_tests_start_no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """So that `make unit` stays quick."""
    before = len(_started)
    yield
    if len(_started) > before and request.node.get_closest_marker("unit"):
        pytest.fail("it starts a process: write `pytestmark = pytest.mark.integration` in its file", pytrace=False)


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    """A run in this process sets PyTorch up for itself; other tests find it as it was."""
    before = _tuning() or (1, "none")
    yield
    if _tuning() not in (None, before):
        import torch

        torch.set_num_threads(before[0])
        torch.backends.mkldnn.matmul.fp32_precision = before[1]  # type: ignore[attr-defined]


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
