"""The cost of a teacher within a training step on one GPU: seconds, tokens/s and peak memory by what is compared.

    python benchmarks/distill_gpu.py            # student and teacher of Qwen3-1.7B's shape, about 3 minutes
    python benchmarks/distill_gpu.py --tiny     # a small model on a CPU, to see that it runs

Random weights; float32 parameters and AdamW for the student, bfloat16 arithmetic for both; 65,536 tokens a step, half
of them the model's. The teacher is on the ranks, but for "a server's top 64", whose columns are there before the step.
A step is the log-probs that come first, where the sampled token is compared, and the update.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_parts import SHAPES, device_name, mixed_batch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config.schema import Actor, Distillation, Optim
from agentrl.training import Batch, PolicyActor
from agentrl.training.model.attention.choosing import use_packed_attention
from agentrl.training.model.handle import ModelHandle
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.teachers import RankTeachers
from agentrl.training.update.distillation import Distiller
from agentrl.training.update.micro_batches import MicroBatching

LOSS = {"reward": False, "use_rewards": False}
WAYS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "no teacher": (None, False),
    "sampled token": ({}, True),
    "top 64 of the teacher": ({"topk": 64, **LOSS}, True),
    "whole vocabulary, reverse KL": ({"topk": -1, **LOSS}, True),
    "whole vocabulary, Jensen-Shannon": ({"topk": -1, "divergence": "jsd", **LOSS}, True),
    "a server's top 64": ({"topk": 64, **LOSS}, False),
}
"""(keys of `distillation`, whether the teacher is on the ranks)"""


def main() -> None:
    args = arguments()
    device = torch.device("cpu" if args.tiny else "cuda")
    table = Table("compared", "s a step", "tokens/s", "of no teacher", "peak GiB", title=f"a step on {device_name()}")
    alone = None
    for name, (keys, on_ranks) in WAYS.items():
        try:
            seconds, tokens, memory = measured(keys, on_ranks, device, args)
        except Exception as error:  # out of memory, say: the other ways go on
            table.add_row(name, str(error).strip().splitlines()[0][:60])
            continue
        alone = alone or seconds
        table.add_row(name, f"{seconds:.3f}", f"{tokens / seconds:.0f}", f"{seconds / alone:.2f}", f"{memory:.1f}")
        Console(width=120).print(table)


def measured(
    keys: dict[str, Any] | None, on_ranks: bool, device: torch.device, args: argparse.Namespace
) -> tuple[float, int, float]:
    """(median seconds of a step, its tokens, peak memory in GiB)."""
    shape = SHAPES["tiny" if args.tiny else "qwen3-1.7b"]
    lengths, tokens = ((16, 128), 2048) if args.tiny else ((256, 4096), args.tokens)
    batch = mixed_batch(tokens, lengths, shape["vocab_size"]).to(device)
    step = step_of(keys, on_ranks, batch, shape, device, args)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = [timed(step, device) for _ in range(args.steps + 1)][1:]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return statistics.median(seconds), batch.num_tokens, memory


def step_of(
    keys: dict[str, Any] | None,
    on_ranks: bool,
    batch: Batch,
    shape: dict[str, Any],
    device: torch.device,
    args: argparse.Namespace,
) -> Callable[[], Any]:
    """A step's work."""
    half = torch.float32 if args.tiny else torch.bfloat16
    teachers = None
    if keys is not None:
        batch.teacher = torch.zeros_like(batch.trajectory)
    if on_ranks:
        sizes = MicroBatching(max_tokens=args.pass_tokens)
        teacher = Reference(model(shape, device, half, half), temperature=1.0, micro_batching=sizes, device=device)
        teachers = RankTeachers({0: teacher}, {})
    elif keys is not None:
        batch.teacher_logprobs = -torch.ones_like(batch.rollout_logprobs)
        size = batch.num_tokens, keys["topk"]
        batch.teacher_topk_ids = torch.randint(shape["vocab_size"], size, dtype=torch.int32, device=device)
        batch.teacher_topk_logprobs = torch.randn(size, device=device).log_softmax(-1)
    policy = PolicyActor(
        model(shape, device, torch.float32, half),
        actor=Actor(ppo_max_token_len_per_gpu=args.pass_tokens, optim=Optim(lr=1e-6)),
        temperature=1.0,
        device=device,
        total_steps=100,
        distiller=None if keys is None else Distiller(Distillation(**keys), teachers),
    )

    def step() -> None:
        if teachers is not None and not keys.get("topk"):  # type: ignore[union-attr]
            batch.teacher_logprobs = None
            batch.teacher_logprobs = teachers.logprobs(batch)
        policy.update(batch)

    return step


def model(shape: dict[str, Any], device: torch.device, dtype: torch.dtype, compute: torch.dtype) -> ModelHandle:
    """A random model."""
    torch.manual_seed(0)
    with device:
        module = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=dtype).eval()
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    use_packed_attention(module)
    return ModelHandle(module, compute_dtype=compute)


def timed(step: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    parser.add_argument("--tokens", type=int, default=65536, help="of a step")
    parser.add_argument("--pass-tokens", type=int, default=8192, help="token budget of a forward pass")
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that warms up")
    return parser.parse_args()


if __name__ == "__main__":
    main()
