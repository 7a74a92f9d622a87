"""Updates of dense models, of experts and of hybrids on one GPU: tokens/s, MFU and peak memory, through the trainer.

    python benchmarks/models_gpu.py                                      # all; passes of 16k tokens
    python benchmarks/models_gpu.py --columns experts "experts model.use_compile=false" --profile FOLDER
    python benchmarks/models_gpu.py --device cpu --tiny                  # to see that it runs

Layers have real sizes and random weights; a few stand for all. Sequences of mixed lengths, half prompt and half model
tokens. All else is agentrl's default: float32 AdamW, bfloat16 arithmetic, compiled blocks. MFU counts the experts that
a token meets. A column is a model and further settings, in a process by itself; one that fails leaves the others.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_parts import mixed_batch
from gpu_prepare import tokenizer_of
from gpu_update import updates
from rich.console import Console
from rich.table import Table

SHAPES = json.loads(Path(__file__).with_name("shapes.json").read_text())
HYBRID = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 151936,
}
"""Four layers of Qwen3.5-35B-A3B: three recurrent, one of attention."""
MODELS = {
    "dense": SHAPES["Qwen3-1.7B"] | {"num_hidden_layers": 12},
    "experts": SHAPES["Qwen3-30B-A3B"] | {"num_hidden_layers": 4},
    "hybrid": HYBRID,
}
TINY = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "vocab_size": 1100, "head_dim": 16}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "shared_expert_intermediate_size": 32}
TINY |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
FIGURES = ("tokens/s", "MFU", "update, s", "peak GiB", "first step, s", "grad norm", "pg loss", "failed")


def main() -> None:
    """One process a column, then the table; with `--one` the column itself."""
    args = arguments()
    if args.one:
        Path(args.out, "figures.json").write_text(json.dumps(measured(args)))
        return
    table = Table("column", *FIGURES, title=torch.cuda.get_device_name() if args.device == "cuda" else "CPU")
    for column in args.columns:
        found = in_a_process(column, args)
        table.add_row(column, *(f"{v:,.4g}" if isinstance(v := found.get(f, ""), float) else str(v) for f in FIGURES))
        Console(width=160).print(column, found, highlight=False)
    Console(width=160).print(table)


def in_a_process(column: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a column."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--one", column, "--out", folder]
        file = Path(folder, "figures.json")
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not ready after {args.limit:.0f} s"}
        lines = ended.stderr.strip().splitlines() or ["no message"]
        return json.loads(file.read_text()) if file.exists() else {"failed": lines[-1][:160]}


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of updates of one column."""
    name, *settings = args.one.split()
    folder = random_weights(MODELS[name] | (TINY if args.tiny else {}), Path(args.out, "model"), args.device)
    fixed = [f"model.path={folder}", f"trainer.device={args.device}", "rollout.name=hf", "data.train_files=none"]
    tokens, lengths = (1024, (16, 128)) if args.tiny else (args.tokens, (256, 4096))
    limit = [f"actor.ppo_max_token_len_per_gpu={512 if args.tiny else args.passes}"]
    spec = {"settings": [*fixed, *settings], "steps": args.steps}
    found = updates(spec, limit, lambda vocabulary: mixed_batch(tokens, lengths, vocabulary))
    if args.profile:
        profiled(spec, limit, lambda vocabulary: mixed_batch(tokens, lengths, vocabulary), args)
    return found


def random_weights(sizes: dict[str, Any], out: Path, device: str) -> Path:
    """A model's folder, with a small tokenizer."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    sizes = dict(sizes)
    torch.manual_seed(0)
    with torch.device(device):
        config = CONFIG_MAPPING[sizes.pop("model_type")](**sizes, bos_token_id=1, eos_token_id=2)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(out)
    tokenizer_of("").save_pretrained(out)
    return out


def profiled(spec: dict[str, Any], limit: list[str], batch_of: Any, args: argparse.Namespace) -> None:
    """Write the kernels of one update, by their time, into the folder `--profile`."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if args.device == "cuda" else [])
    with profile(activities=kinds) as seen:
        updates(spec | {"steps": 1}, limit, batch_of)
    order = "self_cuda_time_total" if args.device == "cuda" else "self_cpu_time_total"
    file = Path(args.profile, args.one.replace(" ", "_").replace("/", "_") + ".txt")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(seen.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=90))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", nargs="+", default=list(MODELS), help="a model, then settings, in one word")
    parser.add_argument("--passes", type=int, default=16384, help="tokens of a pass")
    parser.add_argument("--tokens", type=int, default=98304, help="tokens of an update")
    parser.add_argument("--steps", type=int, default=3, help="timed updates, after one that warms up")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small layers")
    parser.add_argument("--profile", help="folder for the kernels of one update")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a column")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
