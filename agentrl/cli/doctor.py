"""`agentrl doctor`: check a run before it spends GPU time.

    agentrl doctor --config-name my-run rollout.multi_turn.enable=true

It takes the settings of `agentrl train`. It needs the tokenizer and three rows: no engine, no GPU, no weights.
"""

import argparse
from collections import Counter
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
)

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, the rows, and how much to show."""
    add_config_arguments(parser)
    parser.add_argument("--rows", type=row_count, default=3, metavar="N", help="number of rows to check (default 3)")
    parser.add_argument("--split", choices=["train", "val"], default="train", help="rows to check (default train)")
    parser.add_argument("--no-conversation", action="store_true", help="do not show the example conversation")


def run(args: argparse.Namespace) -> int:
    """Print findings as they come; returns 1 if one of them is a problem."""
    config = load_config(args, checks=())
    use_idle_cores(config.trainer, config.rollout)
    from agentrl.doctor.diagnosis import diagnose

    printer = FindingPrinter()
    diagnosis = diagnose(config, printer, split=args.split, count=args.rows)
    if not args.no_conversation:
        conversation(printer.console, diagnosis)
    return printer.end()


class FindingPrinter:
    """Prints findings by area, and at the end their numbers."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.area, self.counts = "", Counter[str]()

    def __call__(self, area: str, finding: "Finding") -> None:
        line(self.console, "" if area == self.area else area, finding)
        self.area = area
        self.counts[finding.level] += 1

    def end(self) -> int:
        """Print the numbers; returns 1 if there is a problem."""
        good, doubts, bad = (self.counts[level] for level in MARKS)
        self.console.print(f"\n{good} ok, {plural(doubts, 'warning')}, {plural(bad, 'problem')}")
        return int(bad > 0)


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
