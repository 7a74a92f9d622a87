"""Held-out success of a preset for several settings, over seeds, all runs side by side on one machine.

    python benchmarks/demo_fleet.py --model SMOLLM2 --bounds 0 2 4 --seeds 0 1 2
    python benchmarks/demo_fleet.py --model SMOLLM2 --also "low@0 actor.optim.lr=1e-4" --limit 480
    python benchmarks/demo_fleet.py --preset tiny --device cpu --steps 2 --bounds 0 2 --seeds 0
    python benchmarks/demo_fleet.py --preset terminal --device cpu --bounds 0
    python benchmarks/demo_fleet.py --preset game --device cpu --bounds 0

A bound is a value of `trainer.max_staleness`. Each seed has its own rows and warm-up, which all its runs share; all
runs train on the same number of trajectories. --also NAME[@SEED,SEED] SETTING... adds settings, or, as @FILE, one such
line after the other; {here}, {seed}, {data}, {warm} and {run} in them are the checkout and the run's own. A run that
fails or that --limit ends is a row that says so. Costs on a GPU: 9 runs of the demo in about 6 minutes.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from demo_seeds import DATA
from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics

HERE = Path(__file__).resolve().parent.parent
HELD_OUT = 256
"""Rows: 64, as the demo has, would tell 5 points from nothing."""
WARM_UP = {
    "game": ["--config-name=tiny_sft", "trainer.total_training_steps=150", "data.train_batch_size=8", "optim.lr=2e-3"]
}
SIZE = {"game": ["--layers", "2", "--hidden", "128"]}
SCRIPT = re.compile(r"^```python\n(# demonstrations\.py\n.*?)^```", re.DOTALL | re.MULTILINE)
"""The game's model, warm-up and demonstrations are those of its page."""
SMALL = ["--train", "64", "--val", "8", "--demos", "64"]
"""Rows and demonstrations with --steps, to see that it runs."""


@dataclass(frozen=True)
class Variant:
    """Settings that are compared."""

    name: str
    words: tuple[str, ...]
    seeds: tuple[int, ...]

    @classmethod
    def parse(cls, line: str, seeds: Sequence[int]) -> Self:
        """From `NAME[@SEED,SEED] SETTING...`."""
        first, *words = shlex.split(line, comments=True)
        name, _, own = first.partition("@")
        return cls(name, tuple(words), tuple(map(int, own.split(","))) if own else tuple(seeds))


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    before: float | None = None
    after: float | None = None
    steps: int = 0
    seconds: float = 0.0
    """Of its steps."""
    note: str = ""
    """Why it did not end by itself."""


class Fleet:
    """Runs commands beside each other until a deadline."""

    def __init__(self, args: argparse.Namespace, variants: Sequence[Variant]) -> None:
        self.args, self.variants, self.end = args, variants, time.monotonic() + args.limit
        runs = sum(len(variant.seeds) for variant in variants)
        threads = args.threads or max(1, len(os.sched_getaffinity(0)) // min(runs, args.parallel))
        self.env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def results(self) -> dict[str, dict[int, Ended]]:
        """By variant and seed."""
        seeds = sorted({seed for variant in self.variants for seed in variant.seeds})
        with ThreadPoolExecutor(len(seeds)) as makers, ThreadPoolExecutor(self.args.parallel) as runners:
            warm = {seed: makers.submit(self._prepare, seed) for seed in seeds}
            pairs = [(variant, seed) for variant in self.variants for seed in variant.seeds]
            runs = {(v.name, seed): runners.submit(self._run, v, seed, warm[seed]) for v, seed in pairs}
            return {v.name: {seed: runs[v.name, seed].result() for seed in v.seeds} for v in self.variants}

    def stop(self) -> None:
        """End all that still runs."""
        self.end = 0.0

    def _prepare(self, seed: int) -> Path:
        """Rows, demonstrations and a warm model. Raises RuntimeError."""
        args, folder = self.args, self.args.out / str(seed)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        log, demos, model = folder / "log.txt", str(folder / "data/sft.jsonl"), args.model or folder / "model"
        if args.preset == "game":
            self._play(log, folder / "data", seed)
        else:
            small = SMALL if args.steps else ["--val", str(HELD_OUT)]
            words = [*DATA[args.preset].split(), *small, "--seed", str(seed), "--out", str(folder / "data")]
            self._must(log, "data", *words)
        if args.model is None:
            self._must(log, "model", "tiny", str(model), "--tokenizer-data", demos, *SIZE.get(args.preset, []))
        files = [f"model.path={model}", f"data.train_files={demos}", f"trainer.output_dir={folder / 'warm'}"]
        seeds = [f"trainer.seed={seed}", f"data.seed={seed}", f"trainer.device={args.device}"]
        seeds += [f"trainer.total_training_steps={4 * args.steps}"] if args.steps else []
        warm_up = WARM_UP.get(args.preset, [f"--config-name={args.preset}_sft"])
        self._must(log, "sft", *warm_up, *files, *seeds, *args.sft)
        return folder

    def _play(self, log: Path, folder: Path, seed: int) -> None:
        """Demonstrations of the game, by the script of its page. Raises RuntimeError."""
        entry = (HERE / "configs/environments/poker.yaml").read_text()
        (folder / "environments.yaml").write_text(f"{entry}  val_rows: {8 if self.args.steps else HELD_OUT}\n")
        script = SCRIPT.findall((HERE / "docs/environments.md").read_text())[0]
        (folder / "demonstrations.py").write_text(script.replace("Random(0)", f"Random({seed})"))
        if note := self._process(log, [sys.executable, "demonstrations.py"], folder):
            raise RuntimeError(f"demonstrations: {note}")

    def _must(self, log: Path, *words: str) -> None:
        if note := self._command(log, *words):
            raise RuntimeError(f"agentrl {words[0]}: {note}")

    def _run(self, variant: Variant, seed: int, prepared: Future[Path]) -> Ended:
        try:
            folder = prepared.result()
        except RuntimeError as error:
            return Ended(note=str(error))
        run, args = self.args.out / f"{variant.name}-{seed}", self.args
        shutil.rmtree(run, ignore_errors=True)  # it would be resumed
        run.mkdir(parents=True)
        places = {"here": HERE, "seed": seed, "data": folder / "data", "warm": folder / "warm", "run": run}
        words = [
            f"--config-name={args.preset}",
            f"model.path={folder / 'warm'}",
            *rows(folder / "data"),
            f"trainer.default_local_dir={run}",
            f"trainer.device={args.device}",
            *(f"{section}.seed={seed}" for section in ("trainer", "data", "rollout")),
            "rollout.name=hf",
            "rollout.deterministic=false",
            f"rollout.max_num_seqs={HELD_OUT}",
            "actor.use_torch_compile=false",
            "trainer.save_freq=-1",
            *([f"trainer.total_training_steps={args.steps}"] if args.steps else []),
            *args.set,
            *variant.words,
        ]
        note = self._command(run / "log.txt", "train", *(filled(word, places) for word in words))
        return ended(run / "metrics.jsonl", note)

    def _command(self, log: Path, *words: str) -> str:
        return self._process(log, [sys.executable, "-m", "agentrl", *words])

    def _process(self, log: Path, words: Sequence[str], folder: Path | None = None) -> str:
        """Run it; "" or why it failed."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                words, env=self.env, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        while process.poll() is None and time.monotonic() < self.end:
            time.sleep(0.1)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "ended by --limit"
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return said[-1][:100] if process.returncode and said else f"{process.returncode}" * bool(process.returncode)


def rows(folder: Path) -> list[str]:
    """The settings that name the rows of a folder."""
    if (folder / "environments.yaml").exists():
        return [f"data.environment_config_path={folder / 'environments.yaml'}"]
    return [f"data.train_files={folder / 'train.parquet'}", f"data.val_files={folder / 'val.parquet'}"]


def filled(word: str, places: dict[str, object]) -> str:
    """A setting with its {places}; other braces stay."""
    for name, value in places.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def ended(metrics: Path, note: str) -> Ended:
    """What the metrics of a run say."""
    lines = read_metrics(metrics) if metrics.exists() else []
    success = [line["val/success"] for line in lines if "val/success" in line]
    if not lines or not success:
        return Ended(note=note or "no metrics")
    seconds = sum(line.get("time/step", 0.0) for line in lines)
    after = success[-1] if not note else None
    return Ended(success[0], after, int(lines[-1]["step"]), seconds, note)


def table(results: dict[str, dict[int, Ended]], title: str) -> Table:
    """A row for each variant; the difference is to the first, over the seeds that both have."""
    seeds = sorted({seed for found in results.values() for seed in found})
    shown = Table("", *(f"seed {seed}" for seed in seeds), "mean", "points over first", "step s", "", title=title)
    first = next(iter(results.values()))
    for name, found in results.items():
        cells = [cell(found[seed]) if seed in found else "" for seed in seeds]
        after = {seed: run.after for seed, run in found.items() if run.after is not None}
        both = [
            value - base for seed, value in after.items() if seed in first and (base := first[seed].after) is not None
        ]
        mean = f"{statistics.mean(after.values()):.3f}" if after else ""
        difference = f"{100 * statistics.mean(both):+.1f}" if both else ""
        steps = [run.seconds / run.steps for run in found.values() if run.steps]
        seconds = f"{statistics.mean(steps):.1f}" if steps else ""
        shown.add_row(name, *cells, mean, difference, seconds, "; ".join({r.note for r in found.values() if r.note}))
    return shown


def cell(run: Ended) -> str:
    """Held-out success before and after, and the steps."""
    before, after = ("-" if value is None else f"{value:.2f}" for value in (run.before, run.after))
    return f"{before} to {after} ({run.steps})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("demo", "tiny", "terminal", "game"), default="demo")
    parser.add_argument("--model", type=Path, help="SmolLM2's folder; the other presets make their own")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--bounds", type=int, nargs="*", default=[0, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--also", action="append", default=[], help="NAME[@SEED,SEED] SETTING..., or @FILE of such lines"
    )
    parser.add_argument("--set", nargs="+", default=[], help="settings of all runs")
    parser.add_argument("--sft", nargs="+", default=[], help="settings of all warm-ups")
    parser.add_argument("--steps", type=int, help="few steps, rows and demonstrations, to see that it runs")
    parser.add_argument("--parallel", type=int, default=64, help="runs at once")
    parser.add_argument("--threads", type=int, help="of each run; default: the cores divided among them")
    parser.add_argument("--limit", type=float, default=3600, help="seconds in all")
    parser.add_argument("--out", type=Path, default=Path("runs/demo_fleet"))
    args = parser.parse_args()
    args.out = args.out.resolve()
    return args


def variants(args: argparse.Namespace) -> list[Variant]:
    """Those of the bounds, and the others."""
    lines = [f"bound-{bound} trainer.max_staleness={bound}" for bound in args.bounds]
    for also in args.also:
        lines += Path(also[1:]).read_text().splitlines() if also.startswith("@") else [also]
    return [Variant.parse(line, args.seeds) for line in lines if shlex.split(line, comments=True)]


def main() -> None:
    args = arguments()
    fleet = Fleet(args, variants(args))
    signal.signal(signal.SIGTERM, lambda *_: fleet.stop())
    start = time.monotonic()
    results = fleet.results()
    title = f"{args.preset}: held-out success before and after (steps), {time.monotonic() - start:.0f} s in all"
    Console(width=160).print(table(results, title))


if __name__ == "__main__":
    main()
