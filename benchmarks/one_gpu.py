"""What one GPU does within a step, in one table; several versions or settings side by side.

    python benchmarks/one_gpu.py --tokenizer MODEL                      # Qwen3-1.7B's shape, random weights
    python benchmarks/one_gpu.py --model MODEL --column before=../old --column after=.
    python benchmarks/one_gpu.py --device cpu --tiny                    # everything on a CPU, in two minutes

Parts: `train`, a run of `agentrl train` with nothing set but model, batch and lengths (seconds by phase, the GPU's load
in each, sync's share, memory beside `agentrl doctor`'s estimate, command to the end of step 1); `rollout`, the loop
over the same server without it, and over the limit of the memory (gpu_rollout.py); `update`, MFU by pass size over
sequences of mixed lengths (gpu_update.py). A column is a checkout and further settings; the ratio is that of the last
column to the first. A part that fails is a line of the table. --out has all figures, logs, and samples of the GPU.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_training
from gpu_parts import console
from gpu_training import Work
from gpu_usage import memory_in_use
from rich.table import Table

HERE = Path(__file__).resolve().parent
LIMITS = {"train": 200.0, "rollout": 200.0, "update": 200.0}
"""Seconds for a column of each part."""
LEAST = 45.0
"""Seconds that a part needs."""
FREE = 2.0
"""GiB in use on a GPU that is free."""
AIMS = {
    "step, s": "15.5",
    "sync, share of a step": "0.01",
    "command to the end of step 1, s": "60",
    "ledger violations": "0",
    "over bare": "0.97",
    "8k MFU": "0.45",
    "32k MFU": "0.50",
}
"""Those in seconds are for one H200 and the work that is the default here."""


@dataclass(frozen=True)
class Column:
    """A version of agentrl, and settings beside those of the benchmark."""

    name: str
    tree: Path
    settings: tuple[str, ...]

    @classmethod
    def parse(cls, words: list[str]) -> "Column":
        """From NAME=FOLDER and settings."""
        name, _, tree = words[0].partition("=")
        return cls(name, Path(tree).resolve(), tuple(words[1:]))

    def environment(self, meta: Path | None) -> dict[str, str]:
        """Of its processes: this checkout before all others."""
        paths = [self.tree, self.tree / "sandbox", *([meta.resolve()] if meta else []), os.environ.get("PYTHONPATH")]
        return os.environ | {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}


class Bench:
    """The parts, column by column."""

    def __init__(self, args: argparse.Namespace, out: Path) -> None:
        self.end = time.time() + args.budget
        self.args, self.out, self.work = args, out, Work(args.prompts, args.group, args.prompt_tokens, args.new_tokens)
        self.columns: list[Column] = args.columns
        prepared = self._prepare()
        self.model, self.costs = Path(prepared["model"]), prepared["costs"]
        self.figures: dict[str, dict[str, Any]] = {}
        """Row -> column -> figure, or the words of a failure."""
        self.common = [f"trainer.device={args.device}", *args.set]

    def run(self, part: str, column: Column) -> None:
        """Measure, and keep figures or the failure."""
        start, folder = time.time(), self.out / f"{part}-{column.name}"
        folder.mkdir(parents=True, exist_ok=True)
        console.print(f"{part}, {column.name}", highlight=False)
        measure = {"train": self._train, "rollout": self._rollout, "update": self._update}[part]
        try:
            self._keep(part, column, measure(column, folder))
        except Exception as error:  # the other parts go on
            self._keep(part, column, {"failed": str(error)[-200:] or repr(error)})
        except SystemExit:
            self._keep(part, column, {"failed": f"stopped; {gpu_training.last_line(folder / 'log.txt', 'no log')}"})
            raise
        console.print(f"  {time.time() - start:.0f} s", highlight=False)
        wait_until_free()

    def _keep(self, part: str, column: Column, found: dict[str, Any]) -> None:
        for name, value in found.items():
            self.figures.setdefault(f"{part}: {name}", {})[column.name] = value
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))

    def _limit(self, part: str) -> float:
        """Seconds that the part may take. Raises TimeoutError where too few are left."""
        left = self.end - time.time()
        if left < LEAST:
            raise TimeoutError("no time left")
        return min(float(self.args.limits[part]), left)

    def _train(self, column: Column, folder: Path) -> dict[str, Any]:
        rows, args, env = folder / "rows.jsonl", self.args, column.environment(self.args.meta)
        gpu_training.write_rows(rows, self._tokenizer(), self.work, args.steps + 1)
        words = gpu_training.settings(
            self.work, rows, folder / "run", model=self.model, engine=args.engine, steps=args.steps
        )
        words += [*self.common, *column.settings]
        (folder / "command.txt").write_text("agentrl train " + " ".join(words) + "\n")
        command = [sys.executable, str(HERE / "gpu_traced.py"), str(folder / "phases.jsonl"), "train", *words]
        found, _ = gpu_training.train(command, env, folder, self.work, args.steps, self._limit("train"))
        found["rollout over the limit of the memory"] = gpu_training.over_limit(found, self.work, tuple(self.costs))
        self._keep("train", column, found)
        shutil.rmtree(folder / "run/checkpoints", ignore_errors=True)
        wait_until_free()
        guess = gpu_training.estimated([sys.executable], words, env)
        return {} if guess is None else {"peak by agentrl doctor, GiB": guess}

    def _rollout(self, column: Column, folder: Path) -> dict[str, Any]:
        spec = {
            "engine": self.args.engine,
            "loads": self.args.loads,
            "repeats": self.args.repeats,
            "bandwidth": self.costs[2],
            "settings": [*self._engine_settings(), *self.common, *column.settings],
        }
        return self._child("rollout", column, folder, spec)

    def _engine_settings(self) -> list[str]:
        dtype = "bfloat16" if self.args.device == "cuda" else "float32"
        return [f"rollout.name={self.args.engine}", f"model.path={self.model}", f"model.dtype={dtype}"]

    def _update(self, column: Column, folder: Path) -> dict[str, Any]:
        spec = {
            "passes": [None if size == "default" else int(size) for size in self.args.passes],
            "tokens": self.args.update_tokens,
            "lengths": self.args.lengths,
            "steps": 2,
            "settings": [
                f"model.path={self.model}",
                f"trainer.default_local_dir={folder / 'run'}",
                f"data.max_response_length={self.args.lengths[1]}",
                "rollout.name=hf",
                *self.common,
                *(word for word in column.settings if "engine_kwargs" not in word),
            ],
        }
        return self._child("update", column, folder, spec)

    def _child(self, part: str, column: Column, folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
        """Run the part's script with the column's agentrl; what it wrote until its end, or its limit."""
        out, file, log = folder / "figures.json", folder / "spec.json", folder / "log.txt"
        file.write_text(json.dumps(spec | {"folder": str(folder), "out": str(out)}))
        command, env = [sys.executable, str(HERE / f"gpu_{part}.py"), str(file)], column.environment(self.args.meta)
        run = gpu_training.watch(command, env, log, out.with_suffix(".none"), 1, self._limit(part))
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        return found | ({"failed": gpu_training.last_line(log, f"exit code {run.code}")} if run.code else {})

    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    def _prepare(self) -> dict[str, Any]:
        """The model and the costs of its decode steps, by a process that gives the GPU's memory back."""
        env = self.columns[-1].environment(self.args.meta)
        spec, out = self.out / "prepare.json", self.out / "prepared.json"
        given = {name: str(value or "") for name, value in vars(self.args).items() if name in ("model", "tokenizer")}
        shape = "tiny" if self.args.tiny else "qwen3-1.7b"
        spec.write_text(json.dumps(given | {"shape": shape, "device": self.args.device, "out": str(out)}))
        subprocess.run([sys.executable, HERE / "gpu_prepare.py", spec], env=env, check=True)
        prepared: dict[str, Any] = json.loads(out.read_text())
        return prepared

    def table(self) -> Table:
        """All figures; `ratio`: last column to first."""
        names = [column.name for column in self.columns]
        ratio = ["ratio"] if len(names) > 1 else []
        table = Table("", *names, *ratio, "aim", title=f"{device_name()}, {self.model.name}, {self.args.engine}")
        for row, found in self.figures.items():
            values = [found.get(name) for name in names]
            table.add_row(row, *map(cell, values), *([ratio_of(values[0], values[-1])] if ratio else []), aim(row))
        return table


def wait_until_free(limit: float = 30.0) -> None:
    """Wait until the processes of the last part have given the GPU's memory back."""
    end = time.time() + limit
    while memory_in_use() > FREE and time.time() < end:
        time.sleep(0.2)


def device_name() -> str:
    """The GPU's name by its driver: this process starts no CUDA of its own."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "CPU"


def cell(value: Any) -> str:
    """A figure with about four digits, or words as they are."""
    if not isinstance(value, int | float):
        return str(value if value is not None else "")
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
    parser.add_argument("--parts", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--engine", choices=("sglang", "vllm", "hf"), default="sglang")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and little work, to see that it runs")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all columns")
    parser.add_argument("--meta", type=Path, help="folder with agentrl's dist-info, where it is not installed")
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


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the table so far is printed
    with tempfile.TemporaryDirectory() as temporary:
        out = (args.out or Path(temporary)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        bench = Bench(args, out)
        try:
            for part in args.parts:
                for column in bench.columns:
                    bench.run(part, column)
        finally:
            console.print(bench.table())


if __name__ == "__main__":
    main()
