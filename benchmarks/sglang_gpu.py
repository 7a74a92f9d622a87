"""The demo task on one GPU with SGLang and the trainer, and a server killed in the middle of a step.

    python benchmarks/sglang_gpu.py --data DATA --model MODEL

DATA: a folder with rows (`agentrl data arithmetic`); MODEL: a chat model after `agentrl sft --config-name demo_sft`.
engine_gpu.py measures the engine's weights and memory, one_gpu.py its throughput.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_parts import SGLANG, console, mean, report, run_arguments, show

from agentrl.tracking import read_metrics


def common(args: argparse.Namespace, run: Path) -> list[str]:
    server = [f"rollout.engine_kwargs.sglang.{flag}" for flag in args.server]
    return [
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={run}",
        "rollout.name=sglang",
        f"rollout.gpu_memory_utilization={args.memory}",
        *(f"+{flag}" for flag in server),
    ]


def demo(args: argparse.Namespace, folder: Path) -> None:
    """Train, kill the server in the middle of a step, and read what the run wrote."""
    run = folder / "demo"
    settings = [
        "--config-name=demo",
        *common(args, run),
        f"model.path={args.model}",
        f"data.train_files={args.data}/train.parquet",
        f"data.val_files={args.data}/val.parquet",
        f"data.train_batch_size={args.prompts}",
        f"actor.ppo_mini_batch_size={args.prompts}",
        f"rollout.n={args.group}",
        f"trainer.total_training_steps={args.steps}",
        "trainer.save_freq=-1",
        "trainer.live=false",
        f"rollout.max_num_seqs={args.prompts * args.group}",
        "actor.ppo_max_token_len_per_gpu=16384",
        *args.set,
    ]
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "agentrl", "train", *settings])
    first: float | None = None
    killed: int | None = None
    while process.poll() is None:
        steps = [int(line["step"]) for line in read_metrics(run / "metrics.jsonl")]
        if first is None and 1 in steps:
            first = time.monotonic() - start
        if killed is None and steps and max(steps) >= args.kill:
            time.sleep(args.kill_after)
            killed = max(steps) + 1
            kill_server()
        time.sleep(0.02)
    report("exit code", str(process.returncode))
    report("command to the end of step 1", f"{first or 0:.1f} s")
    read_demo(run, args, killed or -1)


def kill_server() -> None:
    """SIGKILL to the process that serves."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        named = [any(name in word for word in command) for name in (b"agentrl_standby", b"watchdog")]
        if named == [True, False]:
            os.kill(int(entry.name), signal.SIGKILL)
            console.print(f"killed {entry.name}")
            return


def read_demo(run: Path, args: argparse.Namespace, killed: int) -> None:
    lines = read_metrics(run / "metrics.jsonl")
    success = [(line["step"], line["val/success"]) for line in lines if "val/success" in line]
    report("validation success", " -> ".join(f"{value:.3f} (step {step})" for step, value in success))
    train = [line for line in lines if "time/rollout" in line]
    report("training reward", " ".join(f"{line['rollout/reward_mean']:.2f}" for line in train))
    report("ledger violations", str(int(sum(line["rollout/ledger_violations"] for line in train))))
    usual = [line for line in train if line["step"] not in (1, killed)] or train
    for phase in ("rollout", "logprobs", "update", "sync", "step"):
        report(
            f"{phase}, s a step",
            f"{mean(line[f'time/{phase}'] for line in usual if f'time/{phase}' in line):.3f}",
        )
    report("sync, share of a step", f"{mean(line['time/sync'] / line['time/step'] for line in usual):.3f}")
    for name in ("mean", "p99", "k3"):
        report(f"gap to the trainer, {name}", f"{mean(line[f'rollout_gap/{name}'] for line in usual):.4f}")
    hit = [line for line in train if line["step"] == killed]
    if hit:
        records = [json.loads(line) for line in (run / f"rollouts/{killed}.jsonl").read_text().splitlines()]
        keys = [(record.get("uid"), record.get("sample"), record.get("key")) for record in records]
        whole = f"{len(records)} of {args.prompts * args.group} trajectories, {len(set(map(str, keys)))} different"
        gap = f"gap {hit[0]['rollout_gap/mean']:.4f}, violations {hit[0]['rollout/ledger_violations']:.0f}"
        report(f"step {killed}, server killed", f"{hit[0]['time/step']:.1f} s; {whole}; {gap}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_arguments(parser, steps=24)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kill", type=int, default=8, help="kill the server in the step after this one")
    parser.add_argument("--kill-after", type=float, default=0.3, help="seconds into that step")
    parser.add_argument("--server", nargs="*", default=SGLANG, help="flags of SGLang's server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        demo(args, folder)
    show("the demo task")


if __name__ == "__main__":
    main()
