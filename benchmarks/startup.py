"""Seconds from the command to the first optimizer step, and the peak memory of a run.

    python benchmarks/startup.py --model MODEL [further words for agentrl train]

The step itself is subtracted: imports, model loading, rows and checks remain.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=".cache/models/smollm2")
    parser.add_argument("--preset", default="demo")
    args, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        Console().print(measure(args.model, args.preset, Path(folder), words))


def measure(model: str, preset: str, folder: Path, words: list[str]) -> Table:
    """One step of the preset on fresh rows, timed from outside."""
    call("data", "arithmetic", "--difficulty", "easy", "--train", "32", "--val", "8", "--out", str(folder / "data"))
    start = time.time()
    call(
        "train",
        f"--config-name={preset}",
        f"model.path={model}",
        f"data.train_files={folder / 'data/train.parquet'}",
        "data.val_files=null",
        f"trainer.default_local_dir={folder / 'run'}",
        "trainer.total_training_steps=1",
        *words,
    )
    metrics_file = folder / "run/metrics.jsonl"
    stepped = metrics_file.stat().st_mtime
    step = read_metrics(metrics_file)[-1]
    table = Table("to the first step ending", "of it the step", "start-up", "peak memory of the process")
    whole, inside = stepped - start, step["time/step"]
    table.add_row(f"{whole:.1f} s", f"{inside:.1f} s", f"{whole - inside:.1f} s", f"{step['perf/peak_rss_gb']:.2f} GiB")
    return table


def call(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "agentrl", *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
