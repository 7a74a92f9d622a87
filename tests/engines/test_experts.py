"""Experts that engines return with tokens: checked, joined over answers, and the same as of one pass."""

import asyncio
import base64
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Sampling
from agentrl.engines.experts import checked_experts, flat_experts, saved_experts
from agentrl.engines.hf import HFEngine
from agentrl.engines.servers.backend import ServerAnswer
from agentrl.engines.servers.client import InFlightRequest
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.routing_probe import routing_of
from agentrl.trajectory.ledger import Ledger, LedgerError, Source
from agentrl.trajectory.plain import from_plain, to_plain
from agentrl.trajectory.row import Row
from agentrl.trajectory.store import stored
from agentrl.trajectory.trajectory import Trajectory
from tests.training.test_routing import moe
from tests.training.tiny import MemoryStore


def rows_of(ids: Any, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
    """Rows that are known by their token: [n, 2, 2]."""
    ids = np.asarray(ids)[start:stop]
    return np.stack([ids % 7, ids % 5, ids % 3, ids % 4], 1).astype(np.uint8).reshape(-1, 2, 2)


def encoded(rows: NDArray[Any]) -> str:
    return base64.b64encode(rows.astype(np.int32).tobytes()).decode()


def npy(rows: NDArray[Any]) -> str:
    file = BytesIO()
    np.save(file, rows)
    return base64.b64encode(file.getvalue()).decode()


def test_answers_are_read_as_the_servers_write_them() -> None:
    rows = rows_of(range(9))
    assert np.array_equal(checked_experts(flat_experts(encoded(rows), 2, 2), rows=9, experts=8), rows)
    assert np.array_equal(checked_experts(saved_experts(npy(rows)), rows=9, experts=8), rows)
    assert np.array_equal(checked_experts(rows, rows=4, experts=8), rows[5:])  # of a server that begins at the prompt
    assert checked_experts(rows, rows=9, experts=256).dtype == np.uint8
    assert checked_experts(rows, rows=9, experts=257).dtype == np.int16


@pytest.mark.parametrize("text", ["!", "AAAA", None, 7, encoded(rows_of(range(8)))[:-4]])
def test_hostile_texts_are_infrastructure_errors(text: Any) -> None:
    with pytest.raises(InfraError, match="experts"):
        flat_experts(text, 2, 2)
    with pytest.raises(InfraError, match="experts"):
        saved_experts(text)
    with pytest.raises(InfraError, match="experts"):
        saved_experts(npy(np.array([{}])) if text is None else text)


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(range(8)),
        rows_of(range(9))[:, :, :0],
        rows_of(range(9)).astype(np.float32),
        rows_of(range(9)).reshape(9, 4),
        rows_of(range(9)) + np.uint8(5),
        rows_of(range(9)).astype(np.int32) - 1,
    ],
)
def test_wrong_shapes_and_ids_are_infrastructure_errors(rows: NDArray[Any]) -> None:
    with pytest.raises(InfraError):
        checked_experts(rows, rows=9, experts=7)


def answer(request: InFlightRequest, count: int, reason: Any, **changed: Any) -> ServerAnswer:
    """The answer of a server that returns the rows asked for."""
    ids = [*request.input_ids, *range(30, 30 + count)]
    start = request.remaining.experts_from
    fields = {"experts": rows_of(ids, start, len(ids) - 1)} | changed
    return ServerAnswer(ids[len(ids) - count :] if count else [], [-1.0] * count, reason, **fields)


def test_an_interrupted_request_asks_for_the_rows_that_it_has_not() -> None:
    request = InFlightRequest(list(range(10)), Sampling(20, experts_from=4))
    request.take(answer(request, 3, "abort"), 0, experts=8)
    assert request.remaining.experts_from == 12
    request.take(answer(request, 0, "abort", experts=None), 1, experts=8)  # interrupted before its first pass
    assert request.remaining.experts_from == 12
    request.take(answer(request, 5, "stop"), 1, experts=8)
    ids = [*range(10), *request.token_ids]
    assert np.array_equal(np.concatenate(request.experts), rows_of(ids, 4, -1))
    with pytest.raises(InfraError, match="returned no experts"):
        request.take(answer(request, 5, "stop", experts=None), 1, experts=8)
    with pytest.raises(InfraError, match="for 5 tokens"):
        request.take(answer(request, 5, "stop", experts=rows_of(range(4))), 1, experts=8)


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_of_many_turns_has_the_rows_of_one_pass(seed: int) -> None:
    random, ledger = Random(seed), Ledger()
    ledger.append_prompt(random.choices(range(50), k=random.randint(1, 6)))
    for turn in range(random.randint(1, 4)):
        for _ in range(random.randint(1, 3)):  # interrupted
            drawn = random.choices(range(50), k=random.randint(0, 5))
            ids = [*ledger.ids, *drawn]
            experts = rows_of(ids, ledger.routed, len(ids) - 1) if drawn else None
            drawn = drawn[: random.randint(0, 5)]  # cut where something stops it
            ledger.append_model(drawn, [-1.0] * len(drawn), turn=turn, version=turn, experts=experts)
        ledger.append_observation(random.choices(range(50), k=random.randint(0, 3)), Source.TOOL, turn=turn)
    ledger.check()
    assert np.array_equal(np.concatenate([np.empty((0, 2, 2)), *ledger.experts]), rows_of(ledger.ids)[: ledger.routed])
    trajectory = Trajectory(Row("r", []), "k", 0, ledgers=[ledger])
    media = {}
    for copy in (stored(trajectory, MemoryStore()), from_plain(to_plain(trajectory, media), trajectory.row, [])):
        assert [*map(np.ndarray.tolist, copy.ledgers[0].experts)] == [*map(np.ndarray.tolist, ledger.experts)]


def test_a_ledger_of_two_models_is_broken() -> None:
    ledger = Ledger()
    ledger.append_prompt([1, 2, 3])
    ledger.append_model([4], [-1.0], turn=0, version=0)
    ledger.experts = [rows_of([1]), rows_of([2])[:, :1]]
    with pytest.raises(LedgerError, match="of several models"):
        ledger.check()
    ledger.experts = [rows_of(range(9))]
    with pytest.raises(LedgerError, match="too many"):
        ledger.check()


@pytest.mark.integration
async def test_the_hf_engine_returns_what_one_pass_of_the_model_meets() -> None:
    module = moe(packed=False)
    routing = routing_of(ModelHandle.of(module), torch.device("cpu"), "key")
    engine = HFEngine(module, max_num_seqs=3, max_model_len=100)
    await engine.start()
    ledgers = []

    async def talk(number: int) -> None:
        ledger = Ledger()
        ledger.append_prompt(torch.randint(3, 90, (4 + 5 * number,)).tolist())
        for turn in range(3):
            sampling = Sampling(3 + number, seed=number, experts_from=ledger.routed)
            got = await engine.generate(ledger.ids.snapshot(), sampling, key=str(number))
            ids, logprobs = got.token_ids, got.logprobs
            ledger.append_model(ids, logprobs, turn=turn, version=0, experts=got.experts)
            assert ledger.routed == len(ledger) - 1
            ledger.append_observation([5, 6], Source.TOOL, turn=turn)
        ledgers.append(ledger)

    await asyncio.gather(*(talk(number) for number in range(4)))
    unasked = await engine.generate([5, 6], Sampling(3), key="x")
    assert unasked.experts is None
    await engine.close()
    for ledger in ledgers:
        with torch.no_grad(), routing.replay(routing.unknown(len(ledger))) as met:
            module(input_ids=torch.tensor([list(ledger.ids)]), use_cache=False)
        known = torch.from_numpy(np.concatenate(ledger.experts))
        assert torch.equal(known.sort(-1).values, met[: ledger.routed].sort(-1).values)
