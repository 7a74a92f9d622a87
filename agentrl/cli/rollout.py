"""Run a few rows and show the conversations; trained tokens are coloured by their probability.

    agentrl rollout --config-name demo rollout.n=2
    agentrl rollout --config-name demo --split val --rows 8 --out seen.jsonl
    agentrl rollout --config-name demo --replay runs/demo/20/train.parquet:7/0 --from-turn 3

It takes the settings of `agentrl train`.
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agentrl.cli.common import add_config_arguments, load_config, print_notes, row_count, use_idle_cores

if TYPE_CHECKING:
    from agentrl.config.schema import Config


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, the rows, and an output file."""
    add_config_arguments(parser)
    parser.add_argument("--rows", type=row_count, default=3, metavar="N", help="number of rows (default 3)")
    parser.add_argument(
        "--split", choices=["train", "val"], default="train", help="rows and sampling settings to use (default train)"
    )
    parser.add_argument("--replay", metavar="RUN/KEY", help="the row and the first turns of a stored trajectory")
    parser.add_argument(
        "--from-turn", type=row_count, default=1, metavar="K", help="with --replay: first turn to sample"
    )
    parser.add_argument("--out", metavar="FILE", help="also write the trajectories to FILE (jsonl)")


def run(args: argparse.Namespace) -> None:
    """Sample `rollout.n` trajectories per row, score and show them."""
    from agentrl.config.validate import SAMPLING
    from agentrl.evaluation.settings import of_split, replayed, scoring_something, untrained

    asked: Config = load_config(args, checks=SAMPLING)
    config = scoring_something(of_split(asked, args.split))
    use_idle_cores(config.trainer, config.rollout)
    from agentrl.config.checks.files import inputs
    from agentrl.core.outputs import check_apart, check_file
    from agentrl.doctor.preflight import preflight

    if args.out:
        check_file(args.out, "--out")
        check_apart(args.out, "--out", inputs(config.model, config.data))
    print_notes(preflight(config))
    from agentrl.data import load_dataset
    from agentrl.runtime.local import LocalRuntime
    from agentrl.tracking import conversation
    from agentrl.tracking.dumps.jsonl import write_trajectories
    from agentrl.tracking.metrics import rollout_metrics
    from agentrl.view.runs import find_trajectory

    console = Console()
    with closing(LocalRuntime(untrained(config))) as runtime:
        files = config.data.train_files if args.split == "train" else config.data.val_files
        dataset = load_dataset(config.data, files, runtime.tokenizer)
        rows = dataset[: args.rows]
        if args.replay:
            rows = replayed(dataset, find_trajectory(args.replay), args.from_turn)
        runtime.publish_weights(0)
        sample = runtime.rollouts.sample if args.split == "train" else runtime.rollouts.validate
        trajectories = sample(rows, 0, lambda _: None)
        for trajectory in trajectories:
            console.print(conversation(trajectory, runtime.rollouts.env.chat.decode))
        if args.out:
            write_trajectories(Path(args.out), 0, trajectories, runtime.rollouts.env.chat.decode)
    if config.reward is not asked.reward:
        console.print("[dim]no reward is configured: each reward is 0[/]")
    metrics = rollout_metrics(trajectories)
    for name in ("rollout/reward_mean", "rollout/success", "rollout/turns_mean", "tools/calls", "rollout/mask_share"):
        if name in metrics:
            console.print(f"[dim]{name}[/] {metrics[name]:.3g}")
