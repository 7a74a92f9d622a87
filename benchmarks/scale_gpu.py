"""Runs on several GPUs under Ray: each placement of engine and trainer, the cost of a step, and a killed rank.

    python benchmarks/scale_gpu.py --data DATA --model MODEL --places colocated tensor apart killed
    python benchmarks/scale_gpu.py --data DATA --tokenizer MODEL --large --places alone colocated

DATA: a folder with rows (`agentrl data arithmetic --difficulty tiny`); MODEL: a model that knows the task, after
`agentrl sft --config-name tiny_sft`. `--large` takes random weights of Qwen3-1.7B's shape and a reward that differs
between its answers. Each run is a normal command; SGLang's weights are checked by log-probs after every sync, and
the run's metrics are printed. `--device cpu` tries everything with CPU processes.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_parts import REWARD, SGLANG, console, large_model, mean, median, report, run_arguments, show

from agentrl.config import compose
from agentrl.tracking import read_metrics
from agentrl_sandbox.isolation import descendants

PLACES = {
    "alone": [],
    "colocated": ["trainer.n_gpus_per_node={gpus}"],
    "tensor": ["trainer.n_gpus_per_node={gpus}", "rollout.tensor_model_parallel_size={width}"],
    "tensor-ipc": [
        "trainer.n_gpus_per_node={gpus}",
        "rollout.tensor_model_parallel_size={width}",
        "rollout.weight_sync=ipc",
    ],
    "apart": ["trainer.n_gpus_per_node={half}", "rollout.nnodes=1", "rollout.n_gpus_per_node={half}"],
    "killed": ["trainer.n_gpus_per_node={gpus}", "trainer.save_freq=1"],
}
PHASES = ("rollout", "logprobs", "update", "sync", "step")


def settings(args: argparse.Namespace, folder: Path, place: str) -> list[str]:
    """The command line of a run."""
    gpu = args.device == "cuda"
    where = {"gpus": args.gpus, "half": max(args.gpus // 2, 1), "width": args.gpus if gpu else 1}
    return [
        "--config-name=tiny",
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={folder / place}",
        f"model.path={args.model}",
        f"data.train_files={args.data}/train.parquet",
        f"data.val_files={args.data}/val.parquet",
        f"data.train_batch_size={args.prompts}",
        f"actor.ppo_mini_batch_size={args.prompts}",
        f"rollout.n={args.group}",
        f"rollout.max_num_seqs={args.prompts * args.group}",
        f"rollout.gpu_memory_utilization={args.memory}",
        "rollout.name=sglang",
        "rollout.weight_check=always",
        *(f"+rollout.engine_kwargs.sglang.{flag}" for flag in SGLANG if gpu),
        f"trainer.total_training_steps={args.steps}",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.live=false",
        "ray_init.address=local",
        *(large(args, folder) if args.large else []),
        *(setting.format(**where) for setting in PLACES[place]),
        *args.set,
    ]


def large(args: argparse.Namespace, folder: Path) -> list[str]:
    """Settings for a model with random weights: answers of the maximum length."""
    (folder / "reward.py").write_text(REWARD)
    return [
        f"data.max_response_length={args.tokens}",
        "actor.ppo_max_token_len_per_gpu=8192",
        f"actor.use_torch_compile={args.device == 'cuda'}",
        "actor.optim.lr=1e-6",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        "rollout.multi_turn.enable=false",
    ]


def run(args: argparse.Namespace, folder: Path, place: str) -> None:
    """One run and its results."""
    words, steps = settings(args, folder, place), folder / place / "metrics.jsonl"
    out = folder / f"{place}.log"
    start, first, killed = time.monotonic(), None, None
    with out.open("w") as log:
        command = [sys.executable, "-W", "ignore", "-m", "agentrl", "train", *words]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            seen = len(read_metrics(steps)) if steps.exists() else 0
            if first is None and seen > 1:
                first = time.monotonic() - start
            if place == "killed" and killed is None and seen > 2:
                killed = kill_rank(process.pid)
            time.sleep(0.05)
            if time.monotonic() - start > args.limit:
                process.send_signal(signal.SIGINT)
                args.limit += 60
    took = f"{first or 0:.0f} s to the end of step 1, {time.monotonic() - start:.0f} s in all"
    report(place, f"exit code {process.returncode}, {took}")
    lines = read_metrics(steps) if steps.exists() else []
    if process.returncode or not lines:
        console.print(out.read_text()[-3000:], highlight=False)
        return
    if killed:
        said = next((line for line in out.read_text().splitlines() if "restart" in line), "nothing")
        report(f"{place}: killed", f"{killed}; it says: {said}")
    figures(place, lines)
    if args.device == "cuda":
        report(f"{place}: peak GiB, estimated by doctor, measured", memory(words[1:], lines))


def kill_rank(pid: int) -> str:
    """SIGKILL to the last of the ranks below a process."""
    ranks = [child for child in descendants(pid) if title(child).startswith("ray::Rank")]
    os.kill(ranks[-1], signal.SIGKILL)
    return f"one of {len(ranks)} ranks"


def title(pid: int) -> str:
    """The title of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def figures(place: str, lines: list[dict[str, Any]]) -> None:
    """Figures from a run's metrics; the first step is a warm-up."""
    train = [line for line in lines if "time/rollout" in line]
    usual = train[1:] or train
    report(f"{place}: steps", " ".join(f"{line['step']:.0f}" for line in train))
    report(
        f"{place}: s a step",
        ", ".join(
            f"{phase} {median(x[f'time/{phase}'] for x in usual if f'time/{phase}' in x):.3f}" for phase in PHASES
        ),
    )
    report(f"{place}: sync, share of a step", f"{mean(x['time/sync'] / x['time/step'] for x in usual):.3f}")
    report(f"{place}: tokens a step", f"{mean(x['batch/tokens'] for x in usual):.0f}")
    if "perf/update_mfu" in usual[-1]:
        report(f"{place}: update's MFU", f"{median(x['perf/update_mfu'] for x in usual):.3f}")
    gaps = [f"{name} {max(x[f'rollout_gap/{name}'] for x in train):.4f}" for name in ("mean", "p99", "k3")]
    report(f"{place}: largest gap to the trainer", ", ".join(gaps))
    report(f"{place}: ledger violations", str(int(sum(x["rollout/ledger_violations"] for x in train))))
    report(f"{place}: success", " ".join(f"{x['rollout/success']:.2f}" for x in train if "rollout/success" in x))


def memory(words: list[str], lines: list[dict[str, Any]]) -> str:
    """The doctor's estimate beside the measured memory."""
    from agentrl.doctor.memory import parts, size_of
    from agentrl.training import device_for

    config = compose(words, config_name="tiny", checks=())
    ranks = config.trainer.n_gpus_per_node
    found = parts(config, size_of(config), ranks, device_for(config.trainer.device))
    peak = max(line.get("perf/update_peak_cuda_gb", 0.0) for line in lines)
    said = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    return f"{sum(found.values()):.1f} ({said}), {peak:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_arguments(parser, steps=5)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--tokenizer", type=Path, help="for --large: a model whose tokenizer serves")
    parser.add_argument("--places", nargs="+", choices=list(PLACES), default=["colocated"])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="for --large: of an answer")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if args.large and args.model is None:
            args.model = large_model(folder, args.tokenizer)
        for place in args.places:
            run(args, folder, place)
    show("runs under Ray")


if __name__ == "__main__":
    main()
