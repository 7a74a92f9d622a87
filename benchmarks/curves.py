"""Make the pictures of docs/reading-curves.md: one healthy run and five sick ones, each a real run of 30 steps.

    python benchmarks/curves.py              # all, about 6 minutes on two cores; --only NAME draws one

A Llama with 4M random weights answers "What is 7 + 5?" with 16 tokens. The reward is the share of digits in the answer,
but where a run says otherwise. Seeds are fixed, so the curves repeat on the same machine.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agentrl
from agentrl.cli.main import main

OUT = Path(__file__).parents[1] / "docs" / "images"
STEPS = 30
PANELS = {
    "reward_mean": ("rollout/reward_mean",),
    "success": ("rollout/success",),
    "zero_variance_groups": ("rollout/zero_variance_groups",),
    "entropy": ("actor/entropy",),
    "grad_norm": ("actor/grad_norm",),
    "pg_clipfrac": ("actor/pg_clipfrac",),
}
WIDE, HIGH, LEFT, TOP = 150, 80, 34, 26
"""Pixels of a panel, and of the space for its numbers and its name."""


def digits(data_source: str, solution_str: str, ground_truth: str) -> float:
    """The share of digits."""
    return sum(letter.isdigit() for letter in solution_str) / max(len(solution_str), 1)


def strict(data_source: str, solution_str: str, ground_truth: str) -> float:
    """Nothing but the right answer counts, which this model never writes."""
    return float(solution_str.strip() == f"The answer is {ground_truth}.")


def gamed(data_source: str, solution_str: str, ground_truth: str) -> dict[str, float]:
    """Digits are paid for; the task is to write the answer."""
    return {"score": digits(data_source, solution_str, ground_truth), "acc": float(ground_truth in solution_str.split())}


@dataclass(frozen=True)
class Run:
    """Settings of a picture, beside those that all have."""

    settings: dict[str, Any] = field(default_factory=dict)
    reward: Callable[..., Any] = digits


RUNS = {
    "healthy": Run(),
    "slow": Run({"actor.optim.lr": 1e-6}),
    "collapsed": Run({"actor.optim.lr": 3e-2}),
    "no-signal": Run(reward=strict),
    "off-policy": Run({"actor.ppo_mini_batch_size": 2, "actor.ppo_epochs": 2, "actor.optim.lr": 3e-3}),
    "gamed": Run(reward=gamed),
}


def history(name: str, run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The metrics of each step."""
    settings = {
        "model.path": "models/tiny",
        "data.train_batch_size": 8,
        "data.max_response_length": 16,
        "actor.ppo_mini_batch_size": 8,
        "actor.optim.lr": 1e-3,
        "rollout.n": 8,
        "rollout.deterministic": True,
        "trainer.experiment_name": name,
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": -1,
        "trainer.device": "cpu",
        "trainer.logger": ["file"],
        "trainer.live": False,
    }
    return list(agentrl.train(settings | run.settings, rows=rows, reward=run.reward).history)


def picture(steps: Sequence[dict[str, float]]) -> str:
    """An SVG with a panel for each metric; a panel's scale ends at its own numbers."""
    across = LEFT + WIDE + 10
    panels = [
        panel(title, [step[names[0]] for step in steps if names[0] in step], (number % 3) * across, number // 3)
        for number, (title, names) in enumerate(PANELS.items())
    ]
    size = f'width="{3 * across}" height="{2 * (HIGH + TOP + 12)}"'
    style = "<style>text{font:11px sans-serif;fill:#777}polyline{fill:none;stroke:#3b82c4;stroke-width:1.6}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(panels)}</svg>\n'


def panel(title: str, values: Sequence[float], left: int, row: int) -> str:
    """One curve with its name, its least and its largest number."""
    down = row * (HIGH + TOP + 12) + TOP
    least, most = min(0.0, *values), max(0.01, *values)
    x = [left + LEFT + WIDE * number / max(len(values) - 1, 1) for number in range(len(values))]
    y = [down + HIGH * (1 - (value - least) / (most - least)) for value in values]
    points = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(x, y, strict=True))
    frame = f'<rect x="{left + LEFT}" y="{down}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#bbb"/>'
    ends = "".join(
        f'<text x="{left + LEFT - 3}" y="{at}" text-anchor="end">{value:.2g}</text>'
        for value, at in ((most, down + 9), (least, down + HIGH))
    )
    return f'<text x="{left + LEFT}" y="{down - 6}">{title}</text>{frame}{ends}<polyline points="{points}"/>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=RUNS, help="one of the runs")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main("data arithmetic --out data --difficulty tiny --train 64 --val 4 --demos 200".split())
        main("model tiny models/tiny --tokenizer-data data/sft.jsonl".split())
        numbers = [(a, b) for a in range(1, 9) for b in range(1, 9)]
        rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in numbers]
        for name in [only] if only else RUNS:
            (OUT / f"curve-{name}.svg").write_text(picture(history(name, RUNS[name], rows)))
