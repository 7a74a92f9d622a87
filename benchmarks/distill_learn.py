"""A warmed-up tiny model teaches a cold one the calculator task of `make tiny`, beside GRPO alone, on a CPU or a GPU.

    python benchmarks/distill_learn.py [--seeds 3] [--steps 24] [--folder FOLDER] [--side-by-side] [--set KEY=VALUE ...]

The cold model was warmed up on sloppy demonstrations, half of which state a wrong number, its teacher on right ones.
All runs have the same rows and number of trajectories. Distillation has a signal for each token, so it takes eight
optimizer steps at half the preset's rate for the trajectories of one step; GRPO is shown with one and with eight.
Prints the share of right answers of the training trajectories by step, the mean over seeds, and the first step from
which on 70% of three steps in a row are right. --side-by-side runs all seeds at the same time, on one CPU core each.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics

TASK = "arithmetic --train 1000 --val 100 --demos 3000 --difficulty tiny --retries 0"
DEMOS = {"cold": ["--slips", "parrot", "--sloppiness", "0.5"], "teacher": ["--sloppiness", "0"]}
GOAL, WINDOW = 0.7, 3
RIGHT = "rollout/success"
EIGHT = ["actor.optim.lr=1.0e-4", "actor.ppo_mini_batch_size=2"]


def main() -> None:
    args = arguments()
    folder = Path(args.folder or tempfile.mkdtemp())
    for name, demos in DEMOS.items():
        prepare(folder, name, demos)
    teacher = f"+teachers.warm={{model: {{path: {folder / 'teacher'}}}, where: ranks}}"
    whole = ["distillation.topk=-1", "distillation.reward=false"]
    kinds = {
        "GRPO": [],
        "GRPO, 8 optimizer steps": EIGHT,
        "distillation of the sampled token": [teacher, "distillation.use_rewards=false", *EIGHT],
        "of the whole vocabulary": [teacher, *whole, "distillation.use_rewards=false", *EIGHT],
        "GRPO and the whole vocabulary": [teacher, *whole, *EIGHT],
    }
    table = Table("run", *map(str, range(0, args.steps, 4)), f"step of {GOAL:.0%}, by seed", "speed")
    first = None
    for kind, settings in kinds.items():
        try:
            with ThreadPoolExecutor(args.seeds if args.side_by_side else 1) as pool:
                runs = [
                    (folder, f"{kind}-{seed}", [*settings, *args.set], seed, args.steps) for seed in range(args.seeds)
                ]
                curves = list(pool.map(learned, *zip(*runs, strict=True)))
        except SystemExit as error:
            table.add_row(kind, str(error)[-60:])
            continue
        reached = [step_of_goal(curve) for curve in curves]
        known = mean(args.steps + 1 if step is None else step for step in reached)
        first = first or known
        shown = [f"{mean(curve[step] for curve in curves):.2f}" for step in range(0, args.steps, 4)]
        table.add_row(kind, *shown, ", ".join(map(str, reached)), f"{first / known:.1f}")
        Console(width=160).print(table)


def prepare(folder: Path, name: str, demos: list[str]) -> None:
    """Write the rows of a warm-up, and the model that it makes."""
    data, start = folder / f"{name}-data", folder / "start"
    if not data.exists():
        agentrl(["data", *TASK.split(), *demos, "--out", str(data)])
    if not start.exists():
        agentrl(["model", "tiny", str(start), "--tokenizer-data", str(data / "sft.jsonl")])
    rows = f"data.train_files={data / 'sft.jsonl'}"
    agentrl(["sft", "--config-name", "tiny_sft", f"model.path={start}", rows, f"trainer.output_dir={folder / name}"])


def learned(folder: Path, name: str, settings: list[str], seed: int, steps: int) -> list[float]:
    """The share of right answers at each step."""
    run = folder / name.replace(",", "").replace(" ", "-")
    rows = [f"data.{part}_files={folder / 'cold-data' / part}.parquet" for part in ("train", "val")]
    limits = [f"trainer.seed={seed}", f"trainer.total_training_steps={steps}", "trainer.test_freq=-1"]
    limits += ["trainer.val_before_train=false", f"trainer.default_local_dir={run}"]
    agentrl(["train", "--config-name", "tiny", f"model.path={folder / 'cold'}", *rows, *limits, *settings])
    return [line[RIGHT] for line in read_metrics(run / "metrics.jsonl") if RIGHT in line]


def step_of_goal(curve: list[float]) -> int | None:
    """The first of WINDOW steps, from 1, whose mean reaches the goal."""
    windows = (mean(curve[step : step + WINDOW]) for step in range(len(curve) - WINDOW + 1))
    return next((step for step, share in enumerate(windows, start=1) if share >= GOAL), None)


def agentrl(words: list[str]) -> None:
    """Run a command; its last lines are shown where it fails. Raises SystemExit there."""
    done = subprocess.run([sys.executable, "-m", "agentrl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("\n".join(["agentrl " + " ".join(words[:3]), *(done.stdout + done.stderr).splitlines()[-8:]]))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--folder", help="keeps rows, models and runs")
    parser.add_argument("--side-by-side", action="store_true", help="all seeds at the same time")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
