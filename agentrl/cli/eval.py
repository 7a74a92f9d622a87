r"""`agentrl eval`: score stored answers or a model, per data source.

Examples:
    # score stored answers, in verl's format
    agentrl eval data.path=answers.parquet reward.custom_reward_function.path=reward.py
    # score a model; its answers are stored in the file
    agentrl eval model.path=models/warm data.path=data/arithmetic/val.parquet rollout.n=8 \
          data.output_path=answers.parquet reward.custom_reward_function.name=agentrl.rewards.scorers:final_number
    # have an agent do a folder's tasks with any model behind a server; the key is in OPENAI_API_KEY
    agentrl eval tasks:FOLDER --agent mini --model NAME --url http://HOST:PORT/v1 rollout.n=4 --each \
          rollout.agent.agent_loop_config_path=agents.yaml
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agentrl.cli.generate import answer, load
from agentrl.cli.generate import configure as configure_rows
from agentrl.config.checks.files import inputs
from agentrl.core.errors import plural
from agentrl.core.outputs import check_apart, check_file, writing
from agentrl.core.row_sources import split_source

if TYPE_CHECKING:
    from agentrl.config.schema.evaluation import EvalConfig
    from agentrl.tracking.estimates import Figure, Report, RowScores


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides and the options around them."""
    configure_rows(parser)
    parser.add_argument("--model", metavar="PATH", help="model.path: a model's folder, or a run's")
    parser.add_argument("--url", metavar="URL", help="an OpenAI-compatible endpoint, which knows --model by its name")
    parser.add_argument("--agent", metavar="NAME", help="rollout.agent.default_agent_loop: who does the tasks")
    parser.add_argument("--each", action="store_true", help="a line for each row or task, not for each data source")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")


def run(args: argparse.Namespace) -> int:
    """Print a table; returns 1 if an answer has no score."""
    args.overrides = overrides(args)
    config = load(args)
    if args.json is not None:
        check_file(args.json, "--json")
        check_apart(args.json, "--json", inputs(config.model, config.data))
    from agentrl.tracking.estimates import reports

    scores = _scores(config, args.rows)
    found = reports([replace(row, data_source=row.uid) for row in scores] if args.each else scores, config.evaluation)
    Console(highlight=False).print(_table(found, config.evaluation.confidence))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        with writing(str(args.json)):
            args.json.write_text(json.dumps([asdict(report) for report in found], indent=1) + "\n")
    failed = sum(report.failed for report in found if report.data_source != "all")
    if failed:
        answers = f"{plural(failed, 'answer')} {'has' if failed == 1 else 'have'}"
        Console(stderr=True).print(f"{answers} no score: the model, a tool or the reward failed", style="red")
    return int(bool(failed))


def overrides(args: argparse.Namespace) -> list[str]:
    """The settings, with those that options and a row source without a key stand for."""
    words = [f"data.path={word}" if split_source(word) else word for word in args.overrides]
    out, engine = args.model and "answers.jsonl", args.url and "openai"
    options = {"data.output_path": out, "rollout.name": engine, "rollout.base_url": args.url}
    options |= {"model.path": args.model, "rollout.agent.default_agent_loop": args.agent}
    return [*(f"{key}={value}" for key, value in options.items() if value), *words]


def _scores(config: "EvalConfig", limit: int | None) -> "list[RowScores]":
    if config.model.path is None:
        from agentrl.evaluation.stored import read_answers, scored

        return scored(config, read_answers(config.data)[:limit])
    from agentrl.rewards.checks import something_scores

    something_scores(config.reward, config.rollout, config.data)
    generator, rows = answer(config, limit)
    return generator.scores(rows)


def _table(found: "list[Report]", confidence: float) -> Table:
    ks = sorted({k for report in found for k in report.passes})
    caption = f"in brackets: {confidence:.0%} confidence intervals over rows"
    table = Table(box=None, header_style="bold", caption=caption)
    for name in ("data source", "rows", "answers", "no score", "mean score", *(f"pass@{k}" for k in ks)):
        table.add_column(name, justify="left" if name == "data source" else "right", overflow="fold")
    for report in found:
        passes = [_shown(report.passes[k]) if k in report.passes else "" for k in ks]
        counts = map(str, (report.rows, report.answers, report.failed))
        table.add_row(report.data_source, *counts, _shown(report.mean), *passes)
    return table


def _shown(figure: "Figure") -> str:
    if figure.bounds is None:
        return f"{figure.value:.3f}"
    low, high = figure.bounds
    return f"{figure.value:.3f} [dim]({low:.3f} to {high:.3f})[/]"
