"""What two processes do in test_ranks.py, and one alone to compare with."""

import os
from pathlib import Path
from typing import Any

import torch

from agentrl.chat import Chat
from agentrl.config.schema import Actor, Model, Optim
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.core.errors import UserError
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training import PolicyActor, load_model, load_processor, pack_ledgers
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import media_of
from tests.media import vision_model

CPU = torch.device("cpu")


def batch_of(folder: Path, sizes: list[tuple[int, int] | None]) -> Any:
    """A sequence for each picture; None: one without."""
    tokenizer = vision_model.load(folder)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(folder)), tokenizer))
    said = chat.template.encode("a picture")
    ledgers = []
    for i, size in enumerate(sizes):
        pictures = [] if size is None else [{"type": "image", "image": vision_model.picture("red", size)}]
        messages = chat.see([{"role": "user", "content": [*pictures, {"type": "text", "text": "look"}]}])
        ledger = Ledger()
        ledger.append_prompt(chat.prompt(messages), media_of(messages))
        ledger.append_model(said[: i + 2], [-3.0] * len(said[: i + 2]), turn=0, version=0)
        ledgers.append(ledger)
    batch = pack_ledgers(ledgers)
    batch.advantages = torch.linspace(-1, 1, batch.num_tokens) * batch.mask
    return batch


def trained(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Three sequences, one a pass: with two ranks one of them has a pass with nothing to learn."""
    module = load_on_ranks(
        lambda device: load_model(Model(path=str(folder)), device=device, seed=0), ranks, FsdpConfig(), device=CPU
    )
    actor = Actor(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=1, optim=Optim(lr=1e-3))
    trainable = PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=3, ranks=ranks)
    whole = batch_of(folder, [(56, 28), (28, 28), (56, 56)])
    batch = share_of(trainable, whole)
    scored = torch.zeros(whole.num_tokens)
    scored[whole.tokens_of(batch.index.tolist())] = trainable.logprobs(batch)[0]
    metrics = trainable.update(batch)
    few = share_of(trainable, batch_of(folder, [(28, 28)]))  # for two ranks: one of them gets a dummy with an image
    few_metrics = trainable.update(few)
    said = ""
    if ranks.world > 1:
        try:
            share_of(trainable, batch_of(folder, [(56, 28), None]))
        except UserError as error:
            said = str(error)
    weights = {name: tensor.clone() for name, tensor in PolicyWeights(module).tensors()}
    return {"scored": scored, "metrics": [metrics, few_metrics], "weights": weights, "refused": said}


def share_of(trainable: PolicyActor, batch: Any) -> Any:
    """This rank's share."""
    shares = trainable.assign_shares(BatchOutline.of(batch))
    return batch.share(shares[trainable.micro_batching.ranks.data_rank])


def rank(index: int, port: int, folder: Path, results: Path) -> None:
    """One of the two."""
    os.environ |= {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    ranks = join_ranks(CPU)
    torch.save(trained(folder, ranks), results / f"{index}.pt")
    torch.distributed.destroy_process_group()
