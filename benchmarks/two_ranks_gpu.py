"""Two GPUs against one: seconds of update, sync and start, and tokens/s of whole steps, before and after in one run.

    python benchmarks/two_ranks_gpu.py --set rollout.engine_python=$(which python3)          # 6 minutes, two GPUs
    python benchmarks/two_ranks_gpu.py --ways one two apart files --budget 600
    python benchmarks/two_ranks_gpu.py --device cpu --tiny                                   # to see that it runs

Ways: `one`, a run of one process on the first GPU; `two`, FSDP2 on both with a server on each; `before`, the same with
prompts that each sample computes, servers that sleep, parameters gathered one by one in float32, and workers that
start after the controller's imports; `asleep`, `two` with servers that sleep; `apart`, one GPU trains and one samples,
weights by NCCL; `files`, `two` with weights by files. All else is the work of one_gpu.py. A way that fails is a line
of the table.
"""

import argparse
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_training
from gpu_bench import HERE, Bench, Column
from gpu_parts import console
from one_gpu import cell, device_name
from rich.table import Table

TWO = "trainer.n_gpus_per_node=2"
WAYS: dict[str, list[str]] = {
    "one": [],
    "before": [TWO, "actor.share_prompts=false", "rollout.free_cache_engine=true"],
    "two": [TWO],
    "asleep": [TWO, "rollout.free_cache_engine=true"],
    "apart": ["rollout.nnodes=1", "rollout.n_gpus_per_node=1"],
    "files": [TWO, "rollout.weight_sync=files"],
}
ROWS = (
    *("step, s", "rollout, s", "logprobs, s", "update, s", "update MFU", "sync, s", "sync, share of a step"),
    *("tokens a step", "tokens/s", "over twice one GPU", "update over half of one GPU's"),
    *("command to the end of step 1, s", "command to the first phase, s", "start: imports, s", "start: model, s"),
    *("start: compile, s", "start: wait, s", "start: weights, s", "start: server, s", "start: total, s"),
    *("rollout gap, mean", "ledger violations", "step 1: actor/grad_norm", "peak of the GPU, GiB", "ended", "failed"),
)
BEFORE = """
import importlib.util, sys

class Patch:
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES:
            return None
        patch = PATCHES.pop(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), patch(module))
        return spec

def one_by_one(fsdp):
    def units(self, dtype=None):
        for _, names in self._units:
            whole = {name: self.module.get_parameter(name).full_tensor().detach() for name in names}
            with self._replaced(whole):
                yield whole
        yield self.saved_buffers()
    fsdp.ShardedModel.units = units

def ready_first(worker):
    light = worker.Worker.__init__
    def __init__(self, *args):
        light(self, *args)
        import transformers
        self.device
    worker.Worker.__init__ = __init__

def late(starting):
    from contextlib import nullcontext
    starting.starting = lambda config, times: nullcontext(starting.Start(times=times))

PATCHES = {
    "agentrl.training.parallel.fsdp": one_by_one,
    "agentrl.runtime.ray.worker": ready_first,
    "agentrl.runtime.starting": late,
}
sys.meta_path.insert(0, Patch())
"""
"""A sitecustomize.py that brings the former behaviour back, in the controller and in its workers."""


@dataclass(frozen=True)
class Way(Column):
    """A way to run, with this checkout."""

    def environment(self, meta: Path | None) -> dict[str, str]:
        """Of its processes."""
        env = super().environment(meta)
        if self.name == "one":
            env["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[0]
        if self.name == "before":
            folder = Path(tempfile.mkdtemp())
            (folder / "sitecustomize.py").write_text(BEFORE)
            env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
        return env


def table_of(bench: Bench) -> Table:
    """The figures of all ways."""
    found = {row.partition(": ")[2]: values for row, values in bench.figures.items()}
    names = [column.name for column in bench.columns]
    speeds = {n: s / found["step, s"][n] for n, s in found.get("tokens a step", {}).items() if n in found["step, s"]}
    updates = {name: value for name, value in found.get("update, s", {}).items() if isinstance(value, float)}
    if alone := speeds.get("one"):
        found["over twice one GPU"] = {name: speed / alone / 2 for name, speed in speeds.items() if name != "one"}
    if alone := updates.get("one"):
        ratios = {name: 2 * value / alone for name, value in updates.items() if name not in ("one", "apart")}
        found["update over half of one GPU's"] = ratios
    found["tokens/s"] = speeds
    table = Table("", *names, title=f"{device_name()}, {bench.model.name}, {bench.args.engine}")
    for row in (row for row in ROWS if row in found):
        table.add_row(row, *(cell(found[row].get(name)) for name in names))
    return table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["one", "before", "two"])
    parser.add_argument("--model", type=Path, help="a folder; default: random weights of Qwen3-1.7B's shape")
    parser.add_argument("--tokenizer", type=Path, help="for random weights: a model whose tokenizer serves")
    parser.add_argument("--engine", choices=("sglang", "vllm", "hf"), default="sglang")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and little work, to see that it runs")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all ways")
    parser.add_argument("--meta", type=Path, help="folder with agentrl's dist-info, where it is not installed")
    parser.add_argument("--models", type=Path, help="folder that keeps the random model for the next call")
    parser.add_argument("--out", type=Path, help="folder for figures and logs; default: a temporary one")
    parser.add_argument("--steps", type=int, default=4, help="of a run")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--limit", type=float, default=150, help="seconds for a way")
    parser.add_argument("--budget", type=float, default=360, help="seconds in all; ways after that are left out")
    args = parser.parse_args()
    if args.tiny:
        args.prompts, args.group, args.prompt_tokens, args.new_tokens, args.steps = 4, 2, 64, 8, 2
        args.engine = "hf" if args.device == "cpu" else args.engine
    args.columns = [Way(name, HERE.parent, ("ray_init.address=local", *WAYS[name])) for name in args.ways]
    args.limits = {"train": args.limit}
    return args


def main() -> None:
    """Run every way, print the table; SIGTERM ends the run under way and prints what there is."""
    args: Any = arguments()
    signal.signal(signal.SIGTERM, lambda *_: gpu_training.STOPPED.set())
    start = time.time()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(args, args.out or Path(name))
        for column in bench.columns:
            bench.run("train", column)
            console.print(table_of(bench))
    console.print(f"{time.time() - start:.0f} s in all", highlight=False)


if __name__ == "__main__":
    main()
