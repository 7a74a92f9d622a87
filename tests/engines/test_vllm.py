"""Real vLLM passes the conformance suite; its traps on a CPU are stepped round."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.engines.engine import Sampling
from agentrl.engines.servers.remote_engine import RemoteEngine
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.nccl import BroadcastTransport
from agentrl.engines.servers.weights.transport import Link
from agentrl.engines.vllm import VLLM
from agentrl.http.client import RequestRefused
from tests.engines import tiny, vllm_server
from tests.engines.conformance import (
    CHECKS,
    Check,
    Subject,
    abort_returns_what_was_drawn,
    assert_scores,
    cancelling_leaves_nothing_running,
    draw,
    prompt,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tied(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """Weights by files. The output layer is the embedding."""
    async with vllm_server.subject(tiny.llama(**vllm_server.SIZES), tmp_path_factory.mktemp("tied")) as made:
        yield made


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(tied: Subject, check: Check) -> None:
    await check(tied)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """The policy is an adapter beside the server's own base model."""
    model = tiny.llama(**vllm_server.SIZES)
    async with vllm_server.subject(model, tmp_path_factory.mktemp("adapted"), adapted=True) as made:
        yield made


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance_of_an_adapter(adapted: Subject, check: Check) -> None:
    await check(adapted)


async def test_an_adapter_follows_the_policy(adapted: Subject) -> None:
    """What was cached by the one before is forgotten: both have one name."""
    await assert_follows(adapted)


async def test_a_seeded_prompt_in_pieces(tied: Subject) -> None:
    """vLLM's sampler takes random numbers of each piece back; on a CPU that ended the server."""
    ids = prompt(3 * vllm_server.PIECE, vocabulary=tied.vocabulary)
    first, second = [await draw(tied, ids, Sampling(20, seed=5), key) for key in "ab"]
    assert_scores(tied, ids, first)
    assert first.token_ids == second.token_ids
    whole = await draw(tied, ids[: vllm_server.PIECE // 2], Sampling(20, seed=5))
    assert_scores(tied, ids[: vllm_server.PIECE // 2], whole)


async def test_versions_without_abort_requests(tied: Subject) -> None:
    engine = tied.engine
    assert isinstance(engine, RemoteEngine)
    assert isinstance(engine.backend, VLLM)
    paths = engine.backend._paths[engine.pool.replicas[0].url]
    paths.discard("/abort_requests")
    await abort_returns_what_was_drawn(tied)
    await cancelling_leaves_nothing_running(tied)
    paths.add("/abort_requests")


async def assert_follows(subject: Subject, updates: int = 3) -> None:
    """The server's log-probs are the policy's after each of several updates."""
    ids = prompt(20, vocabulary=subject.vocabulary)
    for version in range(1, updates + 1):
        subject.change_weights()
        await subject.engine.update_weights(version)
        assert_scores(subject, ids, await draw(subject, ids, Sampling(20, seed=version)))


async def test_a_tied_output_layer_gets_new_weights(tied: Subject) -> None:
    """vLLM's update leaves it with the packed copy of the old ones."""
    await assert_follows(tied)


async def test_packed_layers_get_new_weights(tied: Subject) -> None:
    """They have no weights to write into, but between the calls that begin and end an update."""
    engine = tied.engine
    assert isinstance(engine, RemoteEngine)
    assert isinstance(engine.transport, FilesTransport)
    with pytest.raises(RequestRefused):
        await engine.backend.load_files(engine.pool.replicas[0].http, engine.transport.folder)
    await assert_follows(tied, 1)


async def test_an_output_layer_of_its_own_by_broadcast(tmp_path: Path) -> None:
    model = tiny.llama(**vllm_server.SIZES, tie_word_embeddings=False)

    def broadcast(weights: PolicyWeights) -> BroadcastTransport:
        return BroadcastTransport(Link(weights, None, tmp_path, vllm_server.BUCKET))

    async with vllm_server.subject(model, tmp_path, transport=broadcast) as subject:
        await assert_follows(subject)
