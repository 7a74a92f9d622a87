"""`agentrl doctor`: check a run before it spends GPU time.

    agentrl doctor --config-name my-run rollout.multi_turn.enable=true

It takes the settings of `agentrl train`. It needs the tokenizer and three rows: no engine, no GPU, no weights.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.common import add_config_arguments, load_config, row_count, use_idle_cores
from agentrl.core.errors import plural

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl.doctor.diagnosis import Diagnosis
    from agentrl.doctor.finding import Finding


EXAMPLES = (
    ("check the settings of a run", "agentrl doctor --config-name my-run rollout.multi_turn.enable=true"),
    ("check ten validation rows", "agentrl doctor --config-name my-run --split val --rows 10"),
    ("which GPUs a model needs", "agentrl doctor --hardware model.path=models/my-model"),
)

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, the rows, and how much to show."""
    add_config_arguments(parser)
    parser.add_argument("--rows", type=row_count, default=3, metavar="N", help="number of rows to check (default 3)")
    parser.add_argument("--split", choices=["train", "val"], default="train", help="rows to check (default train)")
    parser.add_argument("--hardware", action="store_true", help="show only which GPUs the model needs, foretold")
    parser.add_argument("--no-conversation", action="store_true", help="do not show the example conversation")


def run(args: argparse.Namespace) -> int:
    """Print findings as they come; returns 1 if one of them is a problem."""
    config = load_config(args, checks=())
    if args.hardware:
        from agentrl.doctor.hardware import table

        sys.stdout.write(table({Path(config.model.path or "").name: config}))
        return 0
    use_idle_cores(config.trainer, config.rollout)
    from rich.console import Console

    from agentrl.doctor.diagnosis import diagnose

    console = Console(highlight=False, soft_wrap=True)
    areas: list[str] = []

    def show(area: str, finding: "Finding") -> None:
        line(console, "" if areas[-1:] == [area] else area, finding)
        areas.append(area)

    diagnosis = diagnose(config, show, split=args.split, count=args.rows)
    if not args.no_conversation:
        conversation(console, diagnosis)
    counts = Counter(finding.level for finding in diagnosis.findings)
    console.print(
        f"\n{counts['ok']} ok, {plural(counts['warning'], 'warning')}, {plural(counts['problem'], 'problem')}"
    )
    return int(counts["problem"] > 0)


def line(console: "Console", area: str, finding: "Finding") -> None:
    """A finding with its fix below it."""
    from rich.text import Text

    mark, style = MARKS[finding.level]
    console.print(Text.assemble((f"{area:<9}", "bold"), " ", (mark, style), " ", finding.text))
    if finding.fix:
        console.print(Text(f"{'':<11} → {finding.fix}", style))


def conversation(console: "Console", diagnosis: "Diagnosis") -> None:
    """The made-up conversation; trained tokens are coloured."""
    from agentrl.tracking import conversation as drawn

    if diagnosis.conversation is not None:
        console.print()
        console.print(drawn(diagnosis.conversation, diagnosis.decode, title="example: trained tokens are coloured"))
