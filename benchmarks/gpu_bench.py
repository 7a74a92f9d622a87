"""The parts of one_gpu.py, column by column: each is a process with the agentrl of its column."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_training
from gpu_parts import console
from gpu_training import Work
from gpu_usage import memory_in_use

HERE = Path(__file__).resolve().parent
LIMITS = {"train": 180.0, "rollout": 180.0, "update": 180.0}
"""Seconds for a column of each part."""
LEAST = 45.0
"""Seconds that a part needs."""
FREE = 2.0
"""GiB in use on a GPU that is free."""


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
        self.asked: dict[str, Any] = {}
        """Column -> words and environment of its run."""
        self.common = [f"trainer.device={args.device}", *args.set]

    def run(self, part: str, column: Column) -> None:
        """Measure, and keep figures or the failure."""
        start, folder = time.time(), self.out / f"{part}-{column.name}"
        shutil.rmtree(folder, ignore_errors=True)  # a run there would be resumed
        folder.mkdir(parents=True)
        console.print(f"{part}, {column.name}", highlight=False)
        measure = {"train": self._train, "rollout": self._rollout, "update": self._update}[part]
        try:
            found = measure(column, folder)
        except Exception as error:  # the other parts go on
            found = {"failed": str(error)[-300:] or repr(error)}
        self._keep(part, column.name, found)
        if "failed" in found:
            show_logs(folder)
        console.print(f"  {time.time() - start:.0f} s", highlight=False)
        wait_until_free()

    def finish(self) -> None:
        """The figures that need all columns: each loop over the best server, and the estimates of all runs."""
        if len(self.columns) > 1:
            for load in self.args.loads:
                self._compare(load)
        left = self.end - time.time()
        if self.asked and left > 0 and not gpu_training.STOPPED.is_set():
            for name, guess in gpu_training.estimates(self.asked, min(left, 60.0)).items():
                self._keep("train", name, {"peak by agentrl doctor, GiB": guess})

    def _compare(self, load: str) -> None:
        """A load's loop in each column over the fastest server without it."""
        loops, servers = (self.figures.get(f"rollout: {load} {name}", {}) for name in ("tokens/s", "bare tokens/s"))
        for name, speed in loops.items():
            self._keep("rollout", name, {f"{load} over best bare": speed / max(servers.values())})

    def _keep(self, part: str, name: str, found: dict[str, Any]) -> None:
        for row, value in found.items():
            self.figures.setdefault(f"{part}: {row}", {})[name] = value
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))

    def _limit(self, part: str) -> float:
        """Seconds that the part may take. Raises TimeoutError where too few are left."""
        left = self.end - time.time()
        if left < LEAST or gpu_training.STOPPED.is_set():
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
        self.asked[column.name] = words, env
        found = gpu_training.train(command, env, folder, self.work, args.steps, self._limit("train"))
        shutil.rmtree(folder / "run/checkpoints", ignore_errors=True)
        over = gpu_training.over_limit(found, self.work, tuple(self.costs))
        return found | {"rollout over the limit of the memory": over}

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
            "groups": [self.work.prompts, self.work.group, self.work.prompt_tokens, self.work.new_tokens],
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
        """The model and the costs of its decode steps, by a process that gives the GPU's memory back; or those of an
        earlier call with the same `--models`."""
        args, env = self.args, self.columns[-1].environment(self.args.meta)
        folder = (args.models or self.out).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        out = folder / (f"{args.model.name if args.model else 'random'}.json")
        if not (args.models and out.exists()):
            given = {
                "model": str(args.model.resolve() if args.model else ""),
                "tokenizer": str(args.tokenizer or ""),
                "out": str(out),
            }
            given |= {"shape": "tiny" if args.tiny else "qwen3-1.7b", "device": args.device}
            subprocess.run([sys.executable, HERE / "gpu_prepare.py", json.dumps(given)], env=env, check=True)
        prepared: dict[str, Any] = json.loads(out.read_text())
        return prepared


def wait_until_free(limit: float = 30.0) -> None:
    """Wait until the processes of the last part have given the GPU's memory back."""
    end = time.time() + limit
    while memory_in_use() > FREE and time.time() < end:
        time.sleep(0.2)


def show_logs(folder: Path) -> None:
    """The last lines of a part that failed, and of its servers."""
    for log in (folder / "log.txt", *sorted(folder.glob("run/engine/*.log"))):
        for line in gpu_training.tail(log, 15):
            console.print(f"  {log.name}: {line[:200]}", highlight=False, markup=False, soft_wrap=True)
