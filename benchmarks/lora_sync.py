"""A LoRA policy sent to the engine as an adapter, beside one sent merged: the same run, twice.

    python benchmarks/lora_sync.py --data DATA --model MODEL [--engine vllm] [--device cpu] [--rank 32]

DATA: a folder with rows (`agentrl data arithmetic`); MODEL: a chat model. For the steps after the first: seconds
and bytes of a sync, seconds of a rollout, and the gap between the engine's and the trainer's log-probs.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_parts import SGLANG, console, mean, run_arguments
from rich.table import Table

from agentrl.config.schema import Model
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.adapter import AdapterWeights
from agentrl.tracking import read_metrics
from agentrl.training import load_model

FIGURES = ("time/sync", "time/rollout", "time/step", "rollout_gap/mean", "rollout_gap/p99", "rollout_gap/k3")


def train(args: argparse.Namespace, run: Path, *, merge: bool) -> dict[str, float]:
    """One run; the means of its later steps."""
    flags = SGLANG if args.engine == "sglang" and args.device == "cuda" else ()
    settings = [
        "--config-name=demo",
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={run}",
        f"trainer.total_training_steps={args.steps}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.live=false",
        f"rollout.name={args.engine}",
        "rollout.weight_check=always",
        f"rollout.gpu_memory_utilization={args.memory}",
        *(f"+rollout.engine_kwargs.{args.engine}.{flag}" for flag in (*flags, *args.server)),
        f"rollout.n={args.group}",
        f"rollout.max_num_seqs={args.prompts * args.group}",
        f"model.path={args.model}",
        f"model.lora_rank={args.rank}",
        "model.target_modules=all-linear",
        f"model.lora_merge={str(merge).lower()}",
        f"model.dtype={dtype_of(args)}",
        f"actor.optim.lr={args.lr}",
        f"data.train_files={args.data}/train.parquet",
        f"data.val_files={args.data}/val.parquet",
        f"data.train_batch_size={args.prompts}",
        f"actor.ppo_mini_batch_size={args.prompts}",
        *args.set,
    ]
    subprocess.run([sys.executable, "-m", "agentrl", "train", *settings], check=True)
    steps = [line for line in read_metrics(run / "metrics.jsonl") if line["step"] > 1]
    found = {name: mean(line[name] for line in steps) for name in FIGURES}
    found["largest gap of a step"] = max(line["rollout_gap/mean"] for line in steps)
    found["reward of the last step"] = steps[-1]["rollout/reward_mean"]
    return found


def dtype_of(args: argparse.Namespace) -> str:
    """The dtype of the base model and of the server's arithmetic."""
    return "bfloat16" if args.device == "cuda" else "float32"


def sizes(args: argparse.Namespace) -> tuple[int, int]:
    """Bytes of a sync: merged, and the adapter."""
    module = load_model(Model(path=str(args.model), lora_rank=args.rank), device=torch.device("cpu"), seed=0)
    dtype = getattr(torch, dtype_of(args))
    adapter = AdapterWeights(module, dtype=dtype).tensors()
    return PolicyWeights(module, dtype=dtype).num_bytes, sum(tensor.nbytes for _, tensor in adapter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_arguments(parser, steps=12)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine", default="sglang", choices=("sglang", "vllm"))
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--server", nargs="*", default=(), help="more flags of the server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        merged, adapter = (train(args, folder / way, merge=way == "merged") for way in ("merged", "adapter"))
    table = Table("figure", "merged", "adapter", title=f"LoRA rank {args.rank}, {args.engine}, {args.device}")
    table.add_row("bytes of a sync", *(f"{size:,}" for size in sizes(args)))
    for figure in merged:
        table.add_row(figure, f"{merged[figure]:.4f}", f"{adapter[figure]:.4f}")
    console.print(table)


if __name__ == "__main__":
    main()
