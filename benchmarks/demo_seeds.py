"""Held-out success of the demo before and after training, over seeds, with the commands of `make demo`.

    python benchmarks/demo_seeds.py --preset demo --seeds 0 1 2
    python benchmarks/demo_seeds.py --preset tiny --seeds 0 1 2 --train "actor.optim.lr=2e-4"
    python benchmarks/demo_seeds.py --preset code
    python benchmarks/demo_seeds.py --preset terminal

Each seed has its own rows, demonstrations, warm-up and run.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics

SLOPPY = "--slips parrot --retries 0 --sloppiness"
DATA = {
    "demo": f"arithmetic --train 512 --val 64 --demos 240 --difficulty easy {SLOPPY} 0.75",
    "tiny": f"arithmetic --train 1000 --val 100 --demos 3000 --difficulty tiny {SLOPPY} 0.5",
    "code": "programs --train 256 --val 48 --demos 200",
    "terminal": "terminal --train 300 --val 64 --demos 500",
}
"""What `make demo`, `make tiny`, `make code` and `make terminal` say to `agentrl data`."""
FROM_SCRATCH = ("tiny", "terminal")


@dataclass
class Extra:
    """Words added to the commands of the preset."""

    data: list[str] = field(default_factory=list)
    sft: list[str] = field(default_factory=list)
    train: list[str] = field(default_factory=list)


@dataclass
class Result:
    """Held-out success before and after, and how long it took."""

    seed: int
    before: float
    after: float
    minutes: dict[str, float]


def agentrl(log: Path, *words: str) -> float:
    """Run a command, its output to `log`; returns minutes."""
    start = time.perf_counter()
    with log.open("a") as file:
        subprocess.run([sys.executable, "-m", "agentrl", *words], check=True, stdout=file, stderr=file, env=os.environ)
    return (time.perf_counter() - start) / 60


def run_seed(preset: str, seed: int, folder: Path, base: Path | None, extra: Extra) -> Result:
    """The whole pipeline for one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    log, data, warm, run = folder / "log.txt", folder / "data", folder / "warm", folder / "run"
    made = agentrl(log, "data", *DATA[preset].split(), "--seed", str(seed), "--out", str(data), *extra.data)
    model = base or folder / "model"
    demos = str(data / "sft.jsonl")
    if preset in FROM_SCRATCH:
        agentrl(log, "model", "tiny", str(model), "--tokenizer-data", demos)
    else:
        agentrl(log, "model", "smollm2", str(model))
    files = [f"model.path={model}", f"data.train_files={demos}", f"trainer.output_dir={warm}", f"trainer.seed={seed}"]
    warmed = agentrl(log, "sft", f"--config-name={preset}_sft", *files, f"data.seed={seed}", *extra.sft)
    files = [
        f"model.path={warm}",
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'val.parquet'}",
    ]
    seeds = [f"trainer.seed={seed}", f"data.seed={seed}"]
    place = [f"trainer.default_local_dir={run}", "trainer.resume_mode=disable"]
    trained = agentrl(log, "train", f"--config-name={preset}", *files, *seeds, *place, *extra.train)
    success = [step["val/success"] for step in read_metrics(run / "metrics.jsonl") if "val/success" in step]
    return Result(seed, success[0], success[-1], {"data": made, "sft": warmed, "train": trained})


def table(results: list[Result], preset: str) -> Table:
    """One row per seed, then mean and spread."""
    shown = Table("seed", "before", "after", "sft min", "train min", title=f"{preset}: held-out success")
    for r in results:
        minutes = [f"{r.minutes[name]:.1f}" for name in ("sft", "train")]
        shown.add_row(str(r.seed), f"{r.before:.2f}", f"{r.after:.2f}", *minutes)
    if len(results) > 1:
        pairs = ([r.before for r in results], [r.after for r in results])
        shown.add_row("mean +- std", *(f"{statistics.mean(x):.3f} +- {statistics.stdev(x):.3f}" for x in pairs))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(DATA), default="demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/demo_seeds"))
    parser.add_argument("--model", type=Path, help="base model's folder, shared by all seeds; default: one a seed")
    parser.add_argument("--parallel", type=int, default=1, help="seeds at once")
    for name in ("data", "sft", "train"):
        parser.add_argument(f"--{name}", type=shlex.split, default=[], help=f"words for agentrl {name}, quoted")
    args = parser.parse_args()
    extra = Extra(args.data, args.sft, args.train)
    with ThreadPoolExecutor(args.parallel) as pool:
        jobs = [pool.submit(run_seed, args.preset, s, args.out / str(s), args.model, extra) for s in args.seeds]
        Console(width=100).print(table([job.result() for job in jobs], args.preset))


if __name__ == "__main__":
    main()
