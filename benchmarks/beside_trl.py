"""CPU and wall time of a step, and rewards, of agentrl and of TRL's GRPOTrainer: same model, rows, tools, settings.

    python benchmarks/beside_trl.py --trl-python /path/to/venv/bin/python [--steps 25] [--rounds 2]

The other interpreter needs trl, datasets and accelerate. Both train a Llama of 4M weights in float32 with groups of 8,
one optimizer step a batch, AdamW without decay at a constant rate, clipping of 0.2, advantages over the group's
deviation, the mean over the batch's tokens, and PyTorch's threads as `--threads` says. They take turns, each run in a
process. Times are of the steps after the first; rewards are means of three steps. Compare ratios within one run.
"""

import argparse
import asyncio
import json
import operator
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SIDES = ("agentrl", "TRL")
GROUP = 8
SECONDS = 0.5
"""How long the slow tool sleeps."""
SUM = re.compile(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*")
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALL = re.compile(r"<tool_call>.*?(</tool_call>|$)", re.DOTALL)


def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Two numbers and + - or * between them.
    """
    found = SUM.fullmatch(str(expression))
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3]))) if found else "Error: write it like 12 + 3."


async def slow_calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Two numbers and + - or * between them.
    """
    await asyncio.sleep(SECONDS)
    return calculator(expression)


slow_calculator.__name__ = "calculator"  # the name that the warm model has learned


def digits(text: str, answer: str) -> float:
    """The share of digits."""
    return sum(letter.isdigit() for letter in text) / max(len(text), 1)


def last_number(text: str, answer: str) -> float:
    """1.0 when the last number outside of tool calls is the answer."""
    return float(re.findall(r"-?\d+", CALL.sub("", text))[-1:] == [answer])


@dataclass(frozen=True)
class Case:
    """One comparison: `prompts` of them a step, answers of `length` tokens."""

    model: str
    prompts: int
    length: int
    lr: float
    score: Callable[[str, str], float]
    tools: Sequence[Callable[..., Any]] = ()


CASES = {
    "single turn, 64 answers of 16 tokens": Case("tiny", 8, 16, 1e-3, digits),
    "calculator, 64 conversations": Case("warm", 8, 96, 2e-4, last_number, [calculator]),
    "16 conversations, tool of 0.5 s": Case("warm", 2, 96, 2e-4, last_number, [slow_calculator]),
}


class Meter:
    """Wall and CPU seconds (of this process and its ended children) at the end of each step."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def mark(self, *args: Any) -> None:
        self.marks.append((time.perf_counter(), cpu(resource.RUSAGE_SELF) + cpu(resource.RUSAGE_CHILDREN)))

    def per_step(self) -> list[float]:
        """Wall and CPU seconds of a step after the first."""
        (wall, spent), (end, in_all) = self.marks[0], self.marks[-1]
        steps = len(self.marks) - 1
        return [(end - wall) / steps, (in_all - spent) / steps]


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def run_agentrl(case: Case, folder: Path, steps: int, seed: int, meter: Meter) -> list[float]:
    """The mean reward of each step."""
    import agentrl

    def reward(data_source: str, solution_str: str, ground_truth: str) -> float:
        return case.score(solution_str, ground_truth)

    settings = {
        "model.path": str(folder / case.model),
        "data": {"train_batch_size": case.prompts, "max_response_length": case.length, "shuffle": False},
        "actor": {"ppo_mini_batch_size": case.prompts, "loss_agg_mode": "token-mean", "grad_clip": 1.0},
        "actor.optim": {"lr": case.lr, "weight_decay": 0.0, "betas": [0.9, 0.999]},
        "rollout": {
            "n": GROUP,
            "name": "hf",
            "max_num_seqs": case.prompts * GROUP,
            "multi_turn.max_assistant_turns": 4,
        },
        "trainer": {"total_training_steps": steps, "seed": seed, "device": "cpu", "logger": ["file"], "save_freq": -1},
        "trainer.default_local_dir": tempfile.mkdtemp(dir=folder),
    }
    done = agentrl.train(settings, rows=rows(folder), tools=case.tools, reward=reward, on_step=meter.mark)
    return [step["rollout/reward_mean"] for step in done.history]


def run_trl(case: Case, folder: Path, steps: int, seed: int, meter: Meter) -> list[float]:
    """See run_agentrl."""
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    class Mark(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            meter.mark()

    def reward(completions: list[list[dict[str, Any]]], answer: list[str], **kwargs: Any) -> list[float]:
        texts = ["".join(m["content"] for m in c if m["role"] == "assistant") for c in completions]
        return [case.score(text, right) for text, right in zip(texts, answer, strict=True)]

    tokenizer = AutoTokenizer.from_pretrained(folder / case.model)
    if case.tools:
        tokenizer.response_template = qwen3_template  # the model writes calls as Qwen3 does
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(dir=folder),
        per_device_train_batch_size=case.prompts * GROUP,
        num_generations=GROUP,
        max_completion_length=case.length,
        max_tool_calling_iterations=3,
        shuffle_dataset=False,
        seed=seed,
        max_steps=steps,
        learning_rate=case.lr,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(folder / case.model),
        args=config,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows(folder)),
        processing_class=tokenizer,
        tools=list(case.tools) or None,
        callbacks=[Mark()],
    )
    trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def run_one(args: argparse.Namespace) -> None:
    """One run in this process: its figures, as JSON."""
    meter = Meter()
    side = run_agentrl if args.side == "agentrl" else run_trl
    rewards = side(CASES[args.only], args.folder, args.steps, args.seed, meter)
    Path(args.result).write_text(json.dumps([*meter.per_step(), mean(rewards[:3]), mean(rewards[-3:])]))


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def prepare(folder: Path, environment: dict[str, str]) -> None:
    """Rows, a model with random weights and one that was warmed up on sloppy demonstrations, where they are missing."""
    template = HERE / "configs" / "templates" / "chatml_tools_terse.jinja"
    demos = folder / "data" / "sft.jsonl"
    words = "data arithmetic --difficulty tiny --train 512 --demos 3000 --slips parrot --sloppiness 0.5 --retries 0"
    tokenizer = [f"--tokenizer-data={demos}", f"--template={template}"]
    warm_up = [f"model.path={folder / 'tiny'}", f"data.train_files={demos}", f"trainer.output_dir={folder / 'warm'}"]
    commands = {
        "data/sft.jsonl": [*words.split(), f"--out={folder / 'data'}"],
        "tiny/config.json": ["model", "tiny", str(folder / "tiny"), *tokenizer],
        "warm/config.json": ["sft", "--config-name=tiny_sft", *warm_up],
    }
    for made, command in commands.items():
        if not (folder / made).exists():
            subprocess.run([sys.executable, "-m", "agentrl", *command], cwd=HERE, env=environment, check=True)
    write_rows(folder)


def write_rows(folder: Path) -> None:
    import pyarrow.parquet as parquet

    table = parquet.read_table(folder / "data" / "train.parquet").to_pylist()
    simple = [{"prompt": row["prompt"], "answer": row["reward_model"]["ground_truth"]} for row in table]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in simple))


def compare(name: str, args: argparse.Namespace, environment: dict[str, str]) -> dict[str, list[float]]:
    """By side: wall and CPU seconds of a step, reward at the beginning and at the end, CPU seconds in all."""
    found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for seed in range(args.rounds):
        for side in SIDES:
            found[side].append(started(side, name, seed, args, environment))
            print(f"{name}, {side}: {[round(value, 3) for value in found[side][-1]]}", file=sys.stderr, flush=True)
    return {side: [mean(values) for values in zip(*runs, strict=True)] for side, runs in found.items()}


def started(side: str, name: str, seed: int, args: argparse.Namespace, environment: dict[str, str]) -> list[float]:
    """The figures of one run, in its interpreter."""
    result, before = args.folder / "result.json", cpu(resource.RUSAGE_CHILDREN)
    python = sys.executable if side == "agentrl" else args.trl_python
    words = [f"--side={side}", f"--only={name}", f"--seed={seed}", f"--steps={args.steps}"]
    command = [python, __file__, *words, f"--folder={args.folder}", f"--result={result}"]
    with (args.folder / "log.txt").open("a") as log:
        subprocess.run(command, env=environment, check=True, stdout=log, stderr=log)
    return [*json.loads(result.read_text()), cpu(resource.RUSAGE_CHILDREN) - before]


def row(name: str, sides: dict[str, list[float]]) -> str:
    (wall, spent, first, last, in_all), (wall2, spent2, first2, last2, in_all2) = (sides[side] for side in SIDES)
    cells = [
        f"{spent:.2f} / {spent2:.2f} = **{spent / spent2:.2f}**",
        f"{wall:.2f} / {wall2:.2f} = {wall / wall2:.2f}",
        f"{in_all:.0f} / {in_all2:.0f}",
        f"{first:.2f} to {last:.2f} / {first2:.2f} to {last2:.2f}",
    ]
    return " | ".join(["", name, *cells, ""]).strip()


def show(args: argparse.Namespace) -> None:
    args.folder = (args.folder or Path(tempfile.mkdtemp())).absolute()
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    prepare(args.folder, environment)
    print("| agentrl / TRL | CPU seconds a step | wall seconds a step | CPU seconds in all | reward |")
    print("| --- | --- | --- | --- | --- |")
    for name in [args.only] if args.only else CASES:
        print(row(name, compare(name, args, environment)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter with TRL")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side, with seeds 0, 1, ...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps rows and models for the next time")
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run_one(args)
    else:
        show(args)


if __name__ == "__main__":
    main()
