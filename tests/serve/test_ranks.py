"""Ranks that share a base train the models of `agentrl serve` as one process does, and load what any number of ranks
has saved.

Tolerance: that of `tests/training/test_multi_rank.py`, for sums of float32 in another order.
"""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file

from tests.serve import ranks
from tests.training.test_model import tokenizer
from tests.training.tiny import tiny
from tests.warm import START_METHOD

pytestmark = [pytest.mark.timeout(300), pytest.mark.integration]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bases") / "qwen3"
    tiny("qwen3", packed=False, tie_word_embeddings=True).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def alone(base, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, ranks.alone(base, folder)


@pytest.fixture(scope="module", params=[1, 2], ids=["shares", "split sequences"])
def on_ranks(request, base, alone, tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = (port, base, folder, alone[0], request.param)
    multiprocessing.start_processes(ranks.rank, given, nprocs=ranks.WORLD, start_method=START_METHOD)
    return folder, [torch.load(folder / f"rank{i}.pt") for i in range(ranks.WORLD)]


def assert_agree(mine: Any, theirs: Any) -> None:
    assert mine.keys() == theirs.keys()
    for name in mine:
        for one, other in zip(mine[name], theirs[name], strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["adapter", "other", "full", "last"])
def test_ranks_compute_the_figures_of_one_process(alone, on_ranks, name) -> None:
    for found in on_ranks[1]:
        assert_agree(found[name], alone[1][name])
        if name != "last":
            assert_agree({"": found[name]["again"]}, {"": found[name]["after"]})


@pytest.mark.parametrize("name", ["adapter", "full"])
def test_ranks_export_the_weights_of_one_process(alone, on_ranks, name) -> None:
    mine, theirs = (next((folder / name).glob("*.safetensors")) for folder in (alone[0], on_ranks[0]))
    assert_agree({n: [t] for n, t in load_file(mine).items()}, {n: [t] for n, t in load_file(theirs).items()})


def test_one_process_goes_on_from_what_ranks_saved(base, on_ranks) -> None:
    models = ranks.opened(base, ranks.ALONE)
    for name in ("adapter", "other"):
        models.create(name, ranks.SHAPES[name])
        models.load(name, on_ranks[0] / f"{name}-state", optimizer=True)
        assert_agree({"": [ranks.train(models, name, 3)]}, {"": on_ranks[1][0][name]["after"]})


def test_every_rank_refuses_alike(on_ranks) -> None:
    assert {found["refused"] for found in on_ranks[1]} == {
        "unload adapter first: names differ, and a model of rank 0 is alone"
    }
