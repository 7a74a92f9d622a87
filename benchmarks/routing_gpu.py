"""The gap between engine and trainer with and without replay of routing, on one GPU, through `agentrl train`.

    python benchmarks/routing_gpu.py --set rollout.engine_python=$(which python3)      # about 8 minutes
    python benchmarks/routing_gpu.py --device cpu --tiny                               # to see that it runs

Layers of Qwen3-30B-A3B with random weights and a small vocabulary learn the calculator task from demonstrations, then
train for some steps with each mode of `actor.router_replay`. Prints mean, p99 and k3 of `rollout_gap` of the last steps
beside the figures of routing. Each mode is a process; one that fails leaves the others.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table

from agentrl.tasks.models import tiny
from agentrl.tracking import read_metrics

SHAPES = json.loads(Path(__file__).with_name("shapes.json").read_text())
SMALL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
FIGURES = {
    "gap mean": "rollout_gap/mean",
    "gap p99": "rollout_gap/p99",
    "k3": "rollout_gap/k3",
    "replayed": "routing/replayed",
    "differs": "routing/differs",
    "reward": "rollout/reward_mean",
    "tokens/s": "perf/rollout_tokens_per_s",
    "step, s": "time/step",
}
LAST = 5
"""Steps at the end whose means are shown."""


def main() -> None:
    """Prepare, train with each mode, print the table."""
    args = arguments()
    folder = Path(args.out or tempfile.mkdtemp())
    model = prepared(args, folder)
    table = Table(
        "mode", *FIGURES, "violations", title=torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    )
    for mode in args.modes:
        found = trained(args, model, folder, mode)
        Console(width=160).print(mode, found, highlight=False)
        table.add_row(mode, *(f"{found.get(name, float('nan')):.3g}" for name in (*FIGURES, "violations")))
    Console(width=160).print(table)


def agentrl(args: argparse.Namespace, *words: str) -> None:
    """Run a command; its last lines are shown where it fails."""
    command = [sys.executable, "-m", "agentrl", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, check=False)
    except subprocess.TimeoutExpired:
        print(words[0], f"is not ready after {args.limit:.0f} s", flush=True)
        return
    if done.returncode:
        print(*words[:2], "failed:", *(done.stdout + done.stderr).strip().splitlines()[-8:], sep="\n", flush=True)


def prepared(args: argparse.Namespace, folder: Path) -> Path:
    """Rows, and a model that was shown some of their answers."""
    rows = ["--train", "512", "--val", "16", "--demos", "100" if args.tiny else "1500"]
    agentrl(args, "data", "arithmetic", "--difficulty", "tiny", *rows, "--out", str(folder / "data"))
    shape = tiny.TinyShape(hidden_size=64, intermediate_size=64, num_hidden_layers=1)
    tiny.prepare(folder / "dense", [folder / "data/sft.jsonl"], shape=shape)
    random_weights(args, folder)
    trainer = [f"trainer.output_dir={folder / 'warm'}", f"trainer.device={args.device}", "optim.lr=2e-4"]
    data = [f"data.train_files={folder / 'data/sft.jsonl'}", "trainer.total_epochs=1"]
    agentrl(args, "sft", "--config-name", "tiny_sft", f"model.path={folder / 'moe'}", *data, *trainer)
    return folder / "warm" if (folder / "warm" / "config.json").exists() else folder / "moe"


def random_weights(args: argparse.Namespace, folder: Path) -> None:
    """Write the model with the tokenizer of the small one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

    tokenizer = AutoTokenizer.from_pretrained(folder / "dense")
    sizes = SHAPES["Qwen3-30B-A3B"] | {"num_hidden_layers": args.layers} | (SMALL if args.tiny else {})
    sizes |= {"vocab_size": len(tokenizer), "tie_word_embeddings": False, "norm_topk_prob": True}
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    sizes.pop("model_type", None)
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes), dtype=torch.bfloat16)
    model.save_pretrained(folder / "moe")
    tokenizer.save_pretrained(folder / "moe")


def trained(args: argparse.Namespace, model: Path, folder: Path, mode: str) -> dict[str, float]:
    """Means of the figures over the last steps of a run."""
    run = folder / mode
    settings = [
        f"model.path={model}",
        f"data.train_files={folder / 'data/train.parquet'}",
        f"data.val_files={folder / 'data/val.parquet'}",
        f"data.train_batch_size={4 if args.tiny else 32}",
        f"actor.ppo_mini_batch_size={2 if args.tiny else 16}",
        f"actor.router_replay.mode={mode}",
        "actor.optim.lr=1e-5",
        "actor.entropy_coeff=0.001",
        f"rollout.name={args.engine}",
        f"rollout.n={4 if args.tiny else 8}",
        "rollout.max_num_seqs=256",
        "rollout.deterministic=false",
        "trainer.max_rollout_gap=null",
        f"trainer.total_training_steps={args.steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={run}",
        *args.set,
    ]
    agentrl(args, "train", "--config-name", "tiny", *settings)
    file = run / "metrics.jsonl"
    steps = read_metrics(file)[-LAST:] if file.exists() else []
    known = {name: [step[key] for step in steps if key in step] for name, key in FIGURES.items()}
    found = {name: mean(values) for name, values in known.items() if values}
    return found | {
        "steps": float(len(steps)),
        "violations": sum(s.get("rollout/ledger_violations", 0.0) for s in steps),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["disabled", "R3", "R2"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small layers")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    parser.add_argument("--limit", type=float, default=240, help="seconds of a command")
    parser.add_argument("--out", help="folder that is kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
