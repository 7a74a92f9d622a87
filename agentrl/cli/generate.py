r"""`agentrl generate`: answer rows with a model and store the answers.

It takes the settings of `agentrl train`: tools, turns and sampling work in the same way.

Examples:
    # answer each row four times
    agentrl generate model.path=models/warm data.path=data/arithmetic/val.parquet \
          data.output_path=answers.parquet rollout.n=4
    # score them later
    agentrl eval data.path=answers.parquet reward.custom_reward_function.path=reward.py
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl.cli.common import add_config_arguments, load_config, print_notes, row_count, terminal, use_idle_cores
from agentrl.core.errors import UserError, plural
from agentrl.core.paths import shown

if TYPE_CHECKING:
    from agentrl.config.schema.evaluation import EvalConfig
    from agentrl.evaluation.generating import Generator, OnRow
    from agentrl.trajectory.row import Row


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides and the options around them."""
    add_config_arguments(parser)
    parser.add_argument("--rows", type=row_count, metavar="N", help="use the first N rows only (default: all)")


def run(args: argparse.Namespace) -> int:
    """Answer the rows and print the output file; returns 1 if an answer failed."""
    config = load(args)
    generator, rows = answer(config, args.rows)
    console = terminal(stderr=True)
    answers = sum(map(len, generator.answers.values()))
    console.print(f"{plural(len(rows), 'row')}, {plural(answers, 'answer')}: {shown(generator.out)}")
    if generator.failed:
        console.print(
            f"{plural(generator.failed, 'answer')} failed; run the same command again to retry them", style="red"
        )
    return int(bool(generator.failed))


def load(args: argparse.Namespace) -> "EvalConfig":
    """Load and check the configuration. Raises UserError."""
    from agentrl.config.schema.evaluation import EvalConfig
    from agentrl.config.validate import ANSWERING

    config: EvalConfig = load_config(args, schema=EvalConfig, default="eval", checks=ANSWERING)
    if not config.data.path:
        raise UserError("data.path is not set: set it to the rows to answer; without a model, to stored answers")
    return config


def answer(config: "EvalConfig", limit: int | None) -> "tuple[Generator, Sequence[Row]]":
    """Answer the rows of `data.path`; without a reward, the answers have no score. Raises UserError."""
    from agentrl.core.outputs import check_file
    from agentrl.doctor.preflight import preflight

    if not config.data.output_path:
        raise UserError("data.output_path is not set: set it to a file for the answers, .parquet or .jsonl")
    out = Path(config.data.output_path)
    check_file(out, "data.output_path")
    print_notes(preflight(config))
    from agentrl.data import load_dataset
    from agentrl.evaluation.generating import Generator
    from agentrl.evaluation.settings import sampler

    use_idle_cores(config.trainer, config.rollout)
    with sampler(config) as runtime:
        rows = load_dataset(config.data, config.data.path, runtime.tokenizer, what="data.path")[:limit]
        generator = Generator(config, runtime, out)
        with progress() as on_row:
            generator.run(rows, on_row)
    return generator, rows


@contextmanager
def progress() -> "Iterator[OnRow]":
    """Show a progress bar on a terminal."""
    console = terminal(stderr=True)
    columns: Any = TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("rows", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
