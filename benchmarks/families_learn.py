"""A dense model, a mixture of experts and a hybrid learn the calculator task of `make tiny`, on a CPU.

    python benchmarks/families_learn.py [--kinds dense experts hybrid] [--folder FOLDER]     # about 5 minutes a kind

Each has random weights, four layers of width 256 and the same tokenizer; it is warmed up on sloppy demonstrations, half
of which state a wrong number, and then trained by `configs/tiny.yaml`. Prints the share of right answers on the
validation rows before, in the middle and after, and the gap between engine and trainer.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentrl.tracking import read_metrics

TASK = "arithmetic --train 1000 --val 100 --demos 3000 --difficulty tiny --slips parrot --sloppiness 0.5 --retries 0"
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LINEAR: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 32}
LINEAR |= {"linear_value_head_dim": 64, "layer_types": ["linear_attention", "full_attention"] * 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {}),
    "experts": ("qwen3_moe", EXPERTS),
    "hybrid": ("qwen3_5_text", LINEAR),
}


def main() -> None:
    args = arguments()
    folder = Path(args.folder or tempfile.mkdtemp())
    agentrl(["data", *TASK.split(), "--out", str(folder / "data")])
    agentrl(["model", "tiny", str(folder / "llama"), "--tokenizer-data", str(folder / "data/sft.jsonl")])
    table = Table("model", "class", "right before", "in the middle", "after", "gap", "violations", "minutes")
    for kind in args.kinds:
        start = time.perf_counter()
        found = learned(kind, folder, args.set)
        table.add_row(kind, KINDS[kind][0], *found, f"{(time.perf_counter() - start) / 60:.1f}")
        Console(width=120).print(table)


def learned(kind: str, folder: Path, settings: list[str]) -> list[str]:
    """The figures of a kind, as text."""
    model, warm, run = (folder / f"{kind}-{part}" for part in ("model", "warm", "run"))
    random_weights(kind, folder / "llama", model)
    data = f"data.train_files={folder / 'data/sft.jsonl'}"
    agentrl(["sft", "--config-name", "tiny_sft", f"model.path={model}", data, f"trainer.output_dir={warm}"])
    rows = [f"data.{part}_files={folder / 'data' / part}.parquet" for part in ("train", "val")]
    agentrl(
        ["train", "--config-name", "tiny", f"model.path={warm}", *rows, f"trainer.default_local_dir={run}", *settings]
    )
    lines = read_metrics(run / "metrics.jsonl")
    right = [line["val/success"] for line in lines if "val/success" in line]
    gap = max(line["rollout_gap/mean"] for line in lines if "rollout_gap/mean" in line)
    violations = sum(line.get("rollout/ledger_violations", 0.0) for line in lines)
    shown = [right[0], right[len(right) // 2], right[-1]] if right else [float("nan")] * 3
    return [*(f"{share:.2f}" for share in shown), f"{gap:.1e}", f"{violations:.0f}"]


def random_weights(kind: str, llama: Path, out: Path) -> None:
    """A model of the kind with the sizes and the tokenizer of another."""
    name, fields = KINDS[kind]
    known = AutoConfig.from_pretrained(llama)
    sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
    sizes += ["num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**{n: getattr(known, n) for n in sizes} | {"head_dim": 64} | fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(out)
    AutoTokenizer.from_pretrained(llama).save_pretrained(out)


def agentrl(words: list[str]) -> None:
    """Run a command; its last lines are shown where it fails. Raises SystemExit there."""
    done = subprocess.run([sys.executable, "-m", "agentrl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit("\n".join(["agentrl " + " ".join(words[:3]), *(done.stdout + done.stderr).splitlines()[-8:]]))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--folder", help="keeps rows, models and runs")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
