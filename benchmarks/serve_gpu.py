"""Training through the models of `agentrl serve` on one GPU, beside the policy's update of a run on the same tokens.

    python benchmarks/serve_gpu.py          # Qwen3-1.7B's shape with random bf16 weights, adapters of rank 32
    python benchmarks/serve_gpu.py --tiny   # the same on a CPU with a small model, to see that it runs

Two batches: groups of answers to the same prompts, and sequences of mixed lengths. Each row is a forward and backward
pass and an optimizer step over all of a batch (PPO's loss), by the median of the timed ones: the policy's update of
`agentrl train`, a served model whose adapter has the same layers, one with the output layer too (a client's default),
and several such models in turn, each with the whole batch. Tokens/s count all tokens, those of shared prompts too. The
first gradient norms differ by what the adapters are drawn to, those of the first two rows by a few percent.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_parts import SHAPES, device_name, grouped_batch, median, mixed_batch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.serve.contract import Adam, AdapterShape, Datum
from agentrl.serve.models import Models
from agentrl.training import Batch
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.perf.device import device_for
from agentrl.training.roles.making import Roles
from agentrl.training.update.passes import description, fit_passes

RANK = 32
ADAM = Adam(learning_rate=1e-5, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, grad_clip_norm=1.0)
console = Console(width=140)


def main() -> None:
    """Measure each way; a table after each batch."""
    args = arguments()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), args)
        for name, batch in batches(args).items():
            table = Table(
                "batch", "way", "tokens/s", "s a step", "of the run's", "peak GiB", "first norm", "first step, s"
            )
            table.title = f"{device_name()}, {batch.num_tokens} tokens"
            alone: list[float] = []
            for way in WAYS:
                cells, speed = measured(way, path, batch, args)
                alone += [speed] * bool(speed)
                share = f"{speed / alone[0]:.3f}" if speed else ""
                table.add_row(name, way, *cells[:2], share, *cells[2:])
            console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument(
        "--steps", type=int, default=3, help="timed steps, after one that compiles and one that warms up"
    )
    parser.add_argument("--adapters", type=int, default=8, help="models in turn")
    parser.add_argument("--set", nargs="*", default=[], help="more settings")
    return parser.parse_args()


def written(folder: Path, args: argparse.Namespace) -> Path:
    """A model with random weights."""
    shape = SHAPES["tiny" if args.tiny else "qwen3-1.7b"]
    torch.manual_seed(0)
    with torch.device("cpu" if args.tiny else "cuda"):
        network = Qwen3ForCausalLM(Qwen3Config(**shape, bos_token_id=1, eos_token_id=2))
        network.to(torch.float32 if args.tiny else torch.bfloat16).save_pretrained(folder)
    return folder


def batches(args: argparse.Namespace) -> dict[str, Batch]:
    """The batches by name."""
    groups = (2, 4, 24, 24) if args.tiny else (16, 8, 512, 512)
    mixed = (512, (16, 96)) if args.tiny else (131072, (256, 4096))
    vocabulary = SHAPES["tiny" if args.tiny else "qwen3-1.7b"]["vocab_size"]
    return {"groups": grouped_batch(*groups, vocabulary), "mixed": mixed_batch(*mixed, vocabulary)}


def measured(way: str, path: Path, batch: Batch, args: argparse.Namespace) -> tuple[list[str], float]:
    """(cells of the row, tokens/s); 0 where it failed."""
    gc.collect()
    if not args.tiny:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        step, models = WAYS[way](config(path, args), batch, args)
        first, norm = timed(step)
        step()
        seconds = median(timed(step)[0] for _ in range(args.steps)) / models
    except Exception as error:  # out of memory, say: the other ways go on
        return [f"{type(error).__name__}: {str(error).strip()[:60]}"], 0.0
    peak = 0.0 if args.tiny else torch.cuda.max_memory_allocated() / 2**30
    speed = batch.num_tokens / seconds
    return [f"{speed:,.0f}", f"{seconds:.3f}", f"{peak:.1f}", f"{norm:.5g}", f"{first:.1f}"], speed


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """(seconds, gradient norm); the norm is read from the device, so all work is done then."""
    start = time.perf_counter()
    norm = step()
    return time.perf_counter() - start, norm


def config(path: Path, args: argparse.Namespace) -> Config:
    """The settings of both: as they are by default, with an adapter on a frozen base."""
    dtype = "float32" if args.tiny else "bfloat16"
    names = [f"model.path={path}", f"model.dtype={dtype}", f"model.lora_rank={RANK}", "rollout.n=8"]
    names += ["actor.loss_agg_mode=token-sum", "actor.clip_ratio_c=1e6", "actor.ppo_mini_batch_size=4096"]
    names += ["data.max_prompt_length=2048", "data.max_response_length=2048", f"actor.optim.lr={ADAM.learning_rate}"]
    names += ["actor.optim.betas=[0.9,0.95]", "actor.optim.weight_decay=0", "data.train_batch_size=4096"]
    return compose([*names, f"trainer.device={'cpu' if args.tiny else 'cuda'}", *args.set], checks=())


def policy(settings: Config, batch: Batch, args: argparse.Namespace) -> tuple[Callable[[], float], int]:
    """The policy's update of a run."""
    roles = Roles(settings, device_for(settings.trainer.device), ALONE)
    actor = roles.actor(roles.policy(), None, None, 100)
    if not args.tiny:
        fit_passes(settings, [actor], [], ALONE)
    console.print(description(actor), highlight=False)
    batch = batch.to(actor.device)
    batch.old_logprobs = batch.rollout_logprobs = actor.logprobs(batch)[0]
    return lambda: actor.update(batch)["actor/grad_norm"], 1


def served(count: int, **layers: bool) -> Callable[..., tuple[Callable[[], float], int]]:
    """So many models in turn."""

    def made(settings: Config, batch: Batch, args: argparse.Namespace) -> tuple[Callable[[], float], int]:
        models = Models(settings)
        names = [f"m{number}" for number in range(count)]
        for number, name in enumerate(names):
            models.create(name, AdapterShape(RANK, seed=number, **layers))
        plain = list(data(batch, [torch.zeros(length - 1) for length in batch.lengths]))
        *_, found = models.forward_backward("m0", plain, "importance_sampling", {}, backward=False)
        assert found is not None
        given = list(data(batch, [torch.from_numpy(own) for own in found.logprobs]))

        def step() -> float:
            for name in names:
                list(models.forward_backward(name, given, "ppo", {}, backward=True))
                norm = models.optim_step(name, ADAM)["grad_norm:mean"]
            return norm

        return step, count

    return made


def data(batch: Batch, logprobs: list[torch.Tensor]) -> Iterator[Datum]:
    """The batch as a client sends it."""
    assert batch.advantages is not None
    rows = zip(batch.ids.split(batch.lengths), batch.advantages.split(batch.lengths), logprobs, strict=True)
    for ids, advantages, old in rows:
        columns: dict[str, Any] = {"target_tokens": ids[1:], "advantages": advantages[1:], "logprobs": old}
        yield Datum(ids[:-1].numpy(), {name: column.numpy() for name, column in columns.items()})


WAYS: dict[str, Callable[..., tuple[Callable[[], float], int]]] = {
    "update of a run": policy,
    "served, the same layers": served(1, unembed=False),
    "served, with the output layer": served(1),
    "served, several in turn": lambda settings, batch, args: served(args.adapters)(settings, batch, args),
}

if __name__ == "__main__":
    main()
