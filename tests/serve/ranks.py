"""What several processes do in test_ranks.py, each rank the same, and one process alone to compare with."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.serve.contract import AdapterShape
from agentrl.serve.models import Models
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import ALONE, Ranks
from tests.serve.test_models import ADAM, data, passed
from tests.training.tiny import CPU

WORLD = 2
SHAPES = {
    "adapter": AdapterShape(rank=4, seed=7),
    "other": AdapterShape(rank=2, seed=8, unembed=False),
    "full": AdapterShape(rank=0),
}


def opened(folder: Path, ranks: Ranks) -> Models:
    config = Config()
    config.model.path, config.trainer.device = str(folder), "cpu"
    config.actor.ppo_max_token_len_per_gpu = 24  # several passes
    config.actor.ulysses_sequence_parallel_size = ranks.seq_world
    return Models(config, ranks)


def train(models: Models, name: str, number: int) -> dict[str, Any]:
    """A pass of each kind and a step: their figures."""
    first = passed(models, name, data("cross_entropy", seed=number), "cross_entropy", {}, backward=True)
    models.begin(name, data("ppo", seed=9 + number)[:1], "ppo", {}, backward=True)  # fewer than ranks
    while (second := models.proceed(name)) is None:
        pass
    logprobs = [torch.from_numpy(own) for own in (*first.logprobs, *second.logprobs)]
    losses = [result.metrics["loss:sum"] for result in (first, second)]
    adam = replace(ADAM, eps=1e-2)  # smooth where gradients are of the size of rounding
    return {"logprobs": logprobs, "losses": losses, **models.optim_step(name, adam)}


def outcome(models: Models, name: str, saved: Path, loaded: Path | None) -> dict[str, Any]:
    """Everything that is compared of one model."""
    models.create(name, SHAPES[name])
    found = {"begun": [train(models, name, number) for number in range(2)]}
    passed(models, name, data("dro"), "dro", {}, backward=True)
    models.save(name, saved / f"{name}-state")
    models.export(name, saved / name)
    found["after"] = [train(models, name, 3)]
    models.load(name, (loaded or saved) / f"{name}-state", optimizer=True)
    found["again"] = [train(models, name, 3)]
    return found


def together(folder: Path, ranks: Ranks, saved: Path, loaded: Path | None) -> dict[str, Any]:
    """Two adapters, then all weights, then an adapter again."""
    models = opened(folder, ranks)
    found = {name: outcome(models, name, saved, loaded) for name in ("adapter", "other")}
    for name in found:
        models.remove(name)
    found["full"] = outcome(models, "full", saved, loaded)
    models.remove("full")
    models.create("adapter", SHAPES["adapter"])
    found["last"] = {"begun": [train(models, "adapter", 0)]}
    try:
        models.create("other", SHAPES["full"])
    except UserError as error:
        found["refused"] = str(error)
    return found


def rank(number: int, port: int, folder: Path, saved: Path, loaded: Path, seq_world: int) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = join_ranks(CPU, sequence_parallel=seq_world, timeout=timedelta(seconds=120))
    torch.save(together(folder, ranks, saved, loaded), saved / f"rank{number}.pt")


def alone(folder: Path, saved: Path) -> dict[str, Any]:
    """The same by one process."""
    return together(folder, ALONE, saved, None)
