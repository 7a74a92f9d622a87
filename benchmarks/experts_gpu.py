"""Expert parallelism on several GPUs: tokens/s for each GPU, MFU and peak memory by `expert_parallel_size`.

    python benchmarks/experts_gpu.py --gpus 2          # expert_parallel_size 1 and 2, compiled and not; equality
    python benchmarks/experts_gpu.py --gpus 4          # 1, 2 and 4
    python benchmarks/experts_gpu.py --gpus 2 --tiny   # the same on CPU processes with a small model

The model has the shape of Qwen3-30B-A3B with 8 of its 48 layers and random weights. It takes PPO updates through
agentrl's trainer in passes of 16k tokens; float32 AdamW, bf16 arithmetic. MFU counts the experts that a token meets.
The gradient norms of the first step must agree. Equality: three updates of a small model in float32, with the experts
split and not split; the largest difference of norms and weights.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_parts import mixed_batch
from rich.console import Console
from rich.table import Table
from torch import multiprocessing
from update_gpu import timed

from agentrl.config.schema import Actor, Optim
from agentrl.config.schema.fsdp import FsdpConfig, MixedPrecision
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training import PolicyActor
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.training.perf.flops import model_flops, peak_flops

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}
FIGURES = ("tokens/s/GPU", "MFU", "s a step", "peak GiB", "first norm", "failed")


def main() -> None:
    """Measure every size, then compare."""
    args = arguments()
    table = Table("expert_parallel_size", "compiled", *FIGURES, title=f"{args.gpus} {device_name(args)}")
    sizes = [size for size in (1, 2, 4, 8) if args.gpus % size == 0]
    for compiled in args.compiled:
        for size in sizes:
            found = in_processes(speed, args, size, compiled == "yes")
            cells = (f"{v:,.4g}" if isinstance(v := found.get(f, ""), float) else str(v) for f in FIGURES)
            table.add_row(str(size), compiled, *cells)
            Console(width=160).print(size, compiled, found, highlight=False)
    Console(width=160).print(table)
    one, *others = [in_processes(weights, args, size, False) for size in sizes]
    for size, other in zip(sizes[1:], others, strict=True):
        Console(width=160).print(f"equality, expert_parallel_size={size} and 1:", difference(one, other))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pass-tokens", type=int, default=16384, help="token budget of a forward pass")
    parser.add_argument("--step-tokens", type=int, default=32768, help="tokens of a step for each GPU")
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that warms up")
    parser.add_argument("--compiled", nargs="+", default=["yes", "no"], choices=["yes", "no"])
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again")
    parser.add_argument("--tiny", action="store_true", help="a small model on CPU processes")
    args = parser.parse_args()
    if args.tiny:
        args.pass_tokens, args.step_tokens = 512, 1024
    return args


def in_processes(measure: Any, args: argparse.Namespace, size: int, compiled: bool) -> dict[str, Any]:
    """What the first of `args.gpus` fresh processes measures."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        given = (measure, port, args, size, compiled, folder)
        try:
            multiprocessing.spawn(member, given, nprocs=args.gpus)
        except Exception as error:  # out of memory, say: the other sizes go on
            lines = str(error).strip().splitlines()
            return {"failed": (lines[-1] if lines else repr(error))[:200]}
        found: dict[str, Any] = torch.load(Path(folder, "found.pt"))
        return found


def member(rank: int, measure: Any, port: int, args: argparse.Namespace, size: int, compiled: bool, out: str) -> None:
    """One process."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.gpus)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cpu") if args.tiny else torch.device("cuda", rank)
    if args.tiny:
        torch.set_num_threads(1)
    ranks = join_ranks(torch.device(device.type), expert_parallel=size)
    found = measure(args, size, compiled, ranks, device)
    if rank == 0:
        torch.save(found, Path(out, "found.pt"))
    torch.distributed.destroy_process_group()


def speed(args: argparse.Namespace, size: int, compiled: bool, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Figures of updates of the large model."""
    config = shape(SMALL if args.tiny else large(args.layers))
    batch = mixed_batch(args.step_tokens * ranks.world, (64, 512) if args.tiny else (256, 4096), config.vocab_size)
    batch = batch.to(device)
    sharding = FsdpConfig(expert_parallel_size=size)
    policy, shapes = trained(config, sharding, ranks, device, args, compiled)
    own = batch.share(policy.assign_shares(BatchOutline.of(batch))[ranks.data_rank])

    def step() -> float:
        return float(policy.update(own)["actor/grad_norm"])

    norm = step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    middle = statistics.median(timed(step, device) for _ in range(args.steps))
    needed, peak = model_flops(shapes, config).update(batch.lengths, int(batch.mask.sum())), peak_flops(device)
    return {
        "tokens/s/GPU": batch.num_tokens / middle / ranks.world,
        "MFU": needed / middle / peak / ranks.world if peak else "",
        "s a step": middle,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else "",
        "first norm": norm,
    }


def weights(args: argparse.Namespace, size: int, compiled: bool, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Norms and weights of three updates of the small model in float32."""
    config = shape(SMALL)
    batch = mixed_batch(1024 * ranks.world, (16, 128), config.vocab_size).to(device)
    sharding = FsdpConfig(expert_parallel_size=size, mixed_precision=MixedPrecision(param_dtype="float32"))
    policy, _ = trained(config, sharding, ranks, device, args, compiled)
    norms = [policy.update(batch)["actor/grad_norm"] for _ in range(3)]
    tensors = {name: tensor.to("cpu", copy=True) for name, tensor in PolicyWeights(policy.model).tensors()}
    return {"norms": torch.tensor(norms)} | tensors


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The largest differences, in words."""
    if failed := one.get("failed") or other.get("failed"):
        return f"failed: {failed}"
    norms = float((one["norms"] / other["norms"] - 1).abs().max())
    largest = max(float((one[name] - other[name]).abs().max()) for name in one if name != "norms")
    return f"norms {norms:.1e} (relative), weights {largest:.1e} of {len(one) - 1} tensors"


def trained(
    config: Any, sharding: FsdpConfig, ranks: Ranks, device: torch.device, args: argparse.Namespace, compiled: bool
) -> tuple[PolicyActor, dict[str, Any]]:
    """A policy with random weights on the ranks, and the shapes of its parameters."""
    from transformers import AutoModelForCausalLM

    def load(where: torch.device) -> ModelHandle:
        torch.manual_seed(0)
        with where if where.type == "meta" else device:
            module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if args.checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return ModelHandle(module.to(where).eval())

    model = load_on_ranks(load, ranks, sharding, device=device, compiled=compiled)
    actor = Actor(ppo_max_token_len_per_gpu=args.pass_tokens, optim=Optim(lr=1e-6))
    policy = PolicyActor(model, actor=actor, temperature=1.0, device=device, total_steps=100, ranks=ranks)
    return policy, dict(model.whole_shapes)


def shape(fields: dict[str, Any]) -> Any:
    """A configuration of Qwen3-MoE."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(**{name: value for name, value in fields.items() if name != "model_type"})


def large(layers: int) -> dict[str, Any]:
    """The shape of Qwen3-30B-A3B with fewer layers."""
    shapes = json.loads(Path(__file__).with_name("shapes.json").read_text())
    fields: dict[str, Any] = shapes["Qwen3-30B-A3B"] | {"num_hidden_layers": layers}
    return fields


def device_name(args: argparse.Namespace) -> str:
    """The kind of processor."""
    return "CPU processes" if args.tiny else torch.cuda.get_device_name(0)


if __name__ == "__main__":
    main()
