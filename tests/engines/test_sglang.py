"""SGLang itself, on this machine's CPU: the conformance suite, and a server that is killed at work."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.config.schema import Rollout
from agentrl.engines.engine import Sampling
from agentrl.engines.servers import RemoteEngine, Replica, ServerProcess
from agentrl.engines.servers.installation import environments
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.adapter import AdapterTransport, AdapterWeights
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.transport import Link, Transport
from agentrl.engines.sglang import SGLang
from tests.engines import tiny
from tests.engines.conformance import CHECKS, Check, Subject, assert_scores, draw, move_on, prompt

PYTHON = environments() / "sglang" / "bin" / "python"
LENGTH = 2500

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not PYTHON.exists(), reason="`agentrl engine install sglang --cpu` comes first"),
]


def pids(port: int) -> list[int]:
    """Processes that were started to serve on `port`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(b"agentrl_standby" in word for word in words) and str(port).encode() in words and b"-S" not in words:
            found.append(int(entry.name))
    return found


Served = tuple[RemoteEngine, Any, int]


@asynccontextmanager
async def serve(model: Any, folder: Path, *, adapted: bool = False) -> AsyncIterator[Served]:
    """A started engine, its policy (`model`, or an adapter beside it), and its server's port."""
    model.config.architectures = [type(model).__name__]
    settings = ServerSettings(str(PYTHON), str(folder), "cpu", "float32", LENGTH, 32)
    scratch = folder / "weights"
    if adapted:
        model.save_pretrained(folder)
        model = tiny.lora(model)
        weights = AdapterWeights(model)
        way: Transport = AdapterTransport(weights, folder=scratch)
        settings = replace(settings, rollout=Rollout(load_format="auto"), adapter=weights.shape)
    else:
        model.config.save_pretrained(folder)
        way = FilesTransport(Link(PolicyWeights(model), model.config, scratch, 1 << 16))
    backend, port = SGLang(settings), free_port()
    server = ServerProcess(backend.command(port), backend.environment(), folder / "log.txt", scratch=scratch)
    replicas = [Replica(backend, f"http://127.0.0.1:{port}", server)]
    engine = RemoteEngine(backend, replicas, way)
    await engine.start()
    yield engine, model, port
    await engine.close()
    assert not pids(port), "the server outlived the engine"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serve(tiny.llama(), tmp_path_factory.mktemp("sglang")) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """On a CPU SGLang widens layers to a multiple of 32, and adapters not with them."""
    async with serve(tiny.llama(intermediate_size=64), tmp_path_factory.mktemp("adapted"), adapted=True) as served:
        yield served


@pytest.fixture(params=["whole", "adapted"])
def served(request: pytest.FixtureRequest) -> Served:
    """A policy that is sent as whole weights, and one that is sent as an adapter."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def subject(served: Served) -> AsyncIterator[Subject]:
    engine, model, _ = served
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    await engine.update_weights(0)
    yield Subject(
        engine,
        logits=lambda ids: tiny.logits(model, ids),
        vocabulary=tiny.VOCABULARY,
        change_weights=lambda: tiny.change(model),
        tolerance=2e-3,
        seeded=False,
        renormalised=False,
        joint=True,
        exact_penalty=False,
    )
    model.load_state_dict(start)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(subject: Subject, check: Check) -> None:
    await check(subject)


async def test_a_killed_server_costs_time_and_no_tokens(subject: Subject, served: Served) -> None:
    engine, _, port = served
    prompts = [prompt(20 + i, vocabulary=subject.vocabulary) for i in range(6)]
    tasks = [asyncio.create_task(engine.generate(p, Sampling(120), key=f"k{i}")) for i, p in enumerate(prompts)]
    await move_on(subject, 6)
    for pid in pids(port):
        os.kill(pid, signal.SIGKILL)
    for ids, got in zip(prompts, await asyncio.gather(*tasks), strict=True):
        assert got.finish_reason == "length"
        assert len(got.token_ids) == 120
        assert_scores(subject, ids, got)
    assert len((await draw(subject, [5, 6], Sampling(4))).token_ids) == 4
