"""Adapters of experts on one GPU: tokens/s, MFU and peak memory of updates.

    python benchmarks/expert_lora_gpu.py          # the layers of Qwen3-30B-A3B on a GPU
    python benchmarks/expert_lora_gpu.py --tiny   # the same on a CPU with a small model, to see that it runs

The model has the shape of Qwen3-30B-A3B with some of its 48 layers and random weights; under LoRA (rank 16) its base is
in bfloat16. A column trains all parameters, one adapts all linear layers, one the experts too by products of low
rank, one the same as peft computes it. The first gradient norms of the last two must agree to about a percent.
"""

import argparse
import statistics
from typing import Any

import torch
from experts_gpu import SMALL, large, shape
from gpu_parts import device_name, mixed_batch
from rich.console import Console
from rich.table import Table
from update_gpu import timed

from agentrl.config.schema import Actor, Model, Optim
from agentrl.training import PolicyActor
from agentrl.training.model.adapter import new_adapter
from agentrl.training.model.grouped_experts import use_grouped_adapters, use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import float32_masters
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.perf.compiled_block import compile_blocks
from agentrl.training.perf.flops import model_flops, peak_flops

WAYS = ("experts", "experts, by peft", "linear layers", "all parameters")
FIGURES = ("tokens/s", "MFU", "s a step", "peak GiB", "first norm", "max load", "failed")
console = Console(width=160)


def main() -> None:
    """Measure each way; a table."""
    args = arguments()
    table = Table("trained", *FIGURES, title=f"{device_name()}, {args.layers} layers")
    for way in args.ways:
        try:
            found = measured(way, args)
        except Exception as error:  # out of memory, say: the other ways go on
            found = {"failed": str(error).strip().splitlines()[0][:120]}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        console.print(way, found, highlight=False)
        table.add_row(way, *(f"{v:,.4g}" if isinstance(v := found.get(f, ""), float) else str(v) for f in FIGURES))
    console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pass-tokens", type=int, default=16384, help="token budget of a forward pass")
    parser.add_argument("--step-tokens", type=int, default=65536)
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that warms up")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.pass_tokens, args.step_tokens, args.compiled = 512, 1024, False
    return args


def measured(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Figures of updates of one way."""
    device = torch.device("cpu" if args.tiny else "cuda")
    config = shape(SMALL if args.tiny else large(args.layers))
    batch = mixed_batch(args.step_tokens, (64, 512) if args.tiny else (256, 4096), config.vocab_size).to(device)
    policy = policy_of(way, config, device, args)

    def step() -> float:
        metrics.update(policy.update(batch))
        return metrics["actor/grad_norm"]

    metrics: dict[str, float] = {}
    norm = step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    middle = statistics.median(timed(step, device) for _ in range(args.steps))
    cost, peak = model_flops(policy.model.whole_shapes, config), peak_flops(device)
    return {
        "tokens/s": batch.num_tokens / middle,
        "MFU": cost.update(batch.lengths, int(batch.mask.sum())) / middle / peak if peak else "",
        "s a step": middle,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else "",
        "first norm": norm,
        "max load": metrics["router/max_load"],
    }


def policy_of(way: str, config: Any, device: torch.device, args: argparse.Namespace) -> PolicyActor:
    """A policy with random weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    adapted = way != "all parameters"
    half = device.type == "cuda"
    with device:
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if adapted and half else None)
    use_grouped_experts(module)
    if adapted:
        parameters = "all-experts" if way.startswith("experts") else None
        module = new_adapter(module, Model(lora_rank=16, target_parameters=parameters))
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)
    if way == "experts":
        use_grouped_adapters(module)
    model = float32_masters(ModelHandle(module.eval(), compute_dtype=torch.bfloat16 if half else None))
    pack_where_exact(model, device)
    if args.compiled:
        model.compiled = compile_blocks(block for _, block in model.blocks())
    actor = Actor(ppo_max_token_len_per_gpu=args.pass_tokens, optim=Optim(lr=1e-6))
    return PolicyActor(model, actor=actor, temperature=1.0, device=device, total_steps=100)


if __name__ == "__main__":
    main()
