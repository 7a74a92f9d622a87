"""Precision settings on one GPU with SGLang: one run per setting, one table.

    python benchmarks/precision_gpu.py --data DATA --model MODEL [--steps 6]

DATA: a folder with rows (`agentrl data arithmetic --difficulty tiny`); MODEL: the tiny preset's model after
`agentrl sft --config-name tiny_sft`. Columns: success held out before and after, the mean and 99th percentile of the
gap between the engine's log-probs and the trainer's, the gradient's norm in step 1, seconds of an update, ledger
violations.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_parts import SGLANG, console, mean, run_arguments
from rich.table import Table
from sglang_gpu import common

from agentrl.tracking import read_metrics

PRECISION = "actor.fsdp_config.mixed_precision.param_dtype"
SETTINGS = {
    "default": [],
    "float32 head": ["model.enable_fp32_lm_head=true"],
    "float16": [f"{PRECISION}=float16", "rollout.dtype=float16"],
    "float16, float32 head": [f"{PRECISION}=float16", "rollout.dtype=float16", "model.enable_fp32_lm_head=true"],
    "read in bfloat16": ["model.dtype=bfloat16"],
    "lora on bfloat16": ["model.dtype=bfloat16", "model.lora_rank=32", "actor.strategy=fsdp"],
}
COLUMNS = ("setting", "held out", "gap mean", "gap p99", "grad norm", "update s", "violations", "exit")


def train(args: argparse.Namespace, folder: Path, name: str) -> list[str]:
    """One run, as a person types it; a row of the table."""
    run = folder / name.replace(" ", "_").replace(",", "")
    command = [
        "--config-name=tiny",
        *common(args, run),
        f"model.path={args.model}",
        f"data.train_files={args.data}/train.parquet",
        f"data.val_files={args.data}/val.parquet",
        f"trainer.total_training_steps={args.steps}",
        f"trainer.test_freq={args.steps}",
        "trainer.save_freq=-1",
        "trainer.live=false",
        *SETTINGS[name],
        *args.set,
    ]
    done = subprocess.run([sys.executable, "-m", "agentrl", "train", *command], capture_output=True, text=True)
    if done.returncode:
        console.print(done.stderr[-3000:], highlight=False, markup=False)
    return row(name, read_metrics(run / "metrics.jsonl"), done.returncode)


def row(name: str, lines: list[dict[str, Any]], code: int) -> list[str]:
    """The figures of a run's metrics."""
    success = " -> ".join(f"{line['val/success']:.2f}" for line in lines if "val/success" in line)
    steps = [line for line in lines if "time/update" in line]
    gaps = [f"{mean(line[f'rollout_gap/{kind}'] for line in steps):.5f}" for kind in ("mean", "p99")]
    norm = f"{steps[0]['actor/grad_norm']:.4f}" if steps else "-"
    update = f"{mean(line['time/update'] for line in steps[1:]):.3f}"
    violations = str(int(sum(line["rollout/ledger_violations"] for line in steps)))
    return [name, success, *gaps, norm, update, violations, str(code)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_arguments(parser, steps=6)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), help="which settings")
    parser.add_argument("--server", nargs="*", default=SGLANG, help="flags of SGLang's server")
    args = parser.parse_args()
    table = Table(*COLUMNS, title="precision")
    with tempfile.TemporaryDirectory() as name:
        for setting in args.only:
            found = train(args, args.folder or Path(name), setting)
            console.print(*found, highlight=False)
            table.add_row(*found)
    console.print(table)


if __name__ == "__main__":
    main()
