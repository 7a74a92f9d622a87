"""What one GPU does within a step, in one table; several versions or settings side by side.

    python benchmarks/one_gpu.py --tokenizer MODEL                      # Qwen3-1.7B's shape, random weights
    python benchmarks/one_gpu.py --model MODEL --column before=../old --column after=.
    python benchmarks/one_gpu.py --tokenizer MODEL --column main=. --column shared=. actor.share_prompts=true
    python benchmarks/one_gpu.py --device cpu --tiny                    # everything on a CPU, in two minutes

Parts: `train`, a run of `agentrl train` with nothing set but model, batch and lengths (seconds by phase, the GPU's load
in each, sync's share, memory beside `agentrl doctor`'s estimate, command to the end of step 1); `rollout`, the loop
over the same server without it, and over the limit of the memory (gpu_rollout.py); `update`, MFU by pass size over
sequences of mixed lengths, then over groups like the run's: seconds, tokens computed, losses (gpu_update.py). A column
is a checkout and further settings; the ratio is that of the last column to the first. A part that fails is a line of
the table. --out has all figures, logs, and samples of the GPU.
"""

import argparse
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_bench import HERE, LIMITS, Bench, Column
from gpu_parts import console
from gpu_training import STOPPED
from rich.table import Table

AIMS = {
    "step, s": "15.5",
    "sync, share of a step": "0.01",
    "command to the end of step 1, s": "60",
    "ledger violations": "0",
    "over bare": "0.97",
    "over best bare": "0.97",
    "8k MFU": "0.45",
    "32k MFU": "0.50",
}
"""Those in seconds are for one H200 and the work that is the default here."""


def table_of(bench: Bench) -> Table:
    """All figures; `ratio`: last column to first."""
    names = [column.name for column in bench.columns]
    ratio = ["ratio"] if len(names) > 1 else []
    table = Table("", *names, *ratio, "aim", title=f"{device_name()}, {bench.model.name}, {bench.args.engine}")
    for row, found in bench.figures.items():
        values = [found.get(name) for name in names]
        table.add_row(row, *map(cell, values), *([ratio_of(values[0], values[-1])] if ratio else []), aim(row))
    return table


def device_name() -> str:
    """The GPU's name by its driver: this process starts no CUDA of its own."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "CPU"


def cell(value: Any) -> str:
    """A figure with about four digits, or the first 60 letters of words."""
    if not isinstance(value, int | float):
        return str(value if value is not None else "")[:60]
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def ratio_of(first: Any, last: Any) -> str:
    """Last over first, where both are numbers."""
    numbers = all(isinstance(value, int | float) for value in (first, last))
    return f"{last / first:.3f}" if numbers and first else ""


def aim(row: str) -> str:
    """The aim of a row, by its name or, for a load, its last words."""
    name = row.partition(": ")[2]
    return AIMS.get(name) or AIMS.get(name.partition(" ")[2], "")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; default: random weights of Qwen3-1.7B's shape")
    parser.add_argument("--tokenizer", type=Path, help="for random weights: a model whose tokenizer serves")
    parser.add_argument("--column", dest="columns", nargs="+", action="append", help="NAME=CHECKOUT [setting ...]")
    parser.add_argument("--parts", nargs="+", default=list(LIMITS), help="PART, or PART:COLUMN for one column alone")
    parser.add_argument("--engine", choices=("sglang", "vllm", "hf"), default="sglang")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and little work, to see that it runs")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all columns")
    parser.add_argument("--meta", type=Path, help="folder with agentrl's dist-info, where it is not installed")
    parser.add_argument("--models", type=Path, help="folder that keeps the random model for the next call")
    parser.add_argument("--out", type=Path, help="folder for figures and logs; default: a temporary one")
    parser.add_argument("--steps", type=int, default=5, help="train: steps of the run")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--loads", nargs="+", default=["512x1x512", "512x4x128", "256x4x64"], help="gpu_rollout.py")
    parser.add_argument("--repeats", type=int, default=2, help="rollout: timed rounds")
    parser.add_argument("--passes", nargs="+", default=["8192", "16384", "32768", "default"])
    parser.add_argument("--update-tokens", type=int, default=120_000, help="update: tokens of a step")
    parser.add_argument(
        "--lengths", type=int, nargs=2, default=[256, 4096], help="update: least and most of a sequence"
    )
    parser.add_argument("--limits", nargs="+", default=[], metavar="PART=SECONDS", help=f"default: {LIMITS}")
    parser.add_argument("--budget", type=float, default=3600, help="seconds in all; parts after that are left out")
    args = parser.parse_args()
    if unknown := {word.partition(":")[0] for word in args.parts} - set(LIMITS):
        parser.error(f"--parts {min(unknown)}: there are {', '.join(LIMITS)}")
    args.columns = [Column.parse(words) for words in args.columns or [[f"now={HERE.parent}"]]]
    args.limits = LIMITS | {name: float(value) for name, _, value in (word.partition("=") for word in args.limits)}
    return tiny(args) if args.tiny else args


def tiny(args: argparse.Namespace) -> argparse.Namespace:
    """Little work for a small model; on a CPU with the engine that needs no server."""
    args.engine = "hf" if args.device == "cpu" else args.engine
    args.prompts, args.group, args.prompt_tokens, args.new_tokens, args.steps = 2, 2, 64, 8, 2
    args.loads, args.repeats, args.passes = ["4x1x64", "2x2x128~"], 1, ["512", "default"]
    args.update_tokens, args.lengths = 1024, [16, 128]
    return args


def planned(parts: Sequence[str], columns: Sequence[Column]) -> list[tuple[str, Column]]:
    """Each part with each column, or with the one that it names."""
    named = [word.partition(":") for word in parts]
    return [(part, column) for part, _, only in named for column in columns if only in ("", column.name)]


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: STOPPED.set())
    with tempfile.TemporaryDirectory() as temporary:
        out = (args.out or Path(temporary)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        bench = Bench(args, out)
        try:
            for part, column in planned(args.parts, bench.columns):
                bench.run(part, column)
            bench.finish()
        finally:
            console.print(table_of(bench))


if __name__ == "__main__":
    main()
