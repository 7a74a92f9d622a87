"""`agentrl doctor`: check a run before it spends GPU time.

It takes the settings of `agentrl train`. It needs the tokenizer and three rows: no engine, no GPU, no weights.

Examples:
    # check the settings of a run
    agentrl doctor --config-name my-run rollout.multi_turn.enable=true
    # check ten validation rows
    agentrl doctor --config-name my-run --split val --rows 10
"""

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from agentrl.cli.common import add_config_arguments, load_config, row_count, terminal, use_idle_cores
from agentrl.core.errors import plural

if TYPE_CHECKING:
    from agentrl.doctor.finding import Finding


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
    if diagnosis.conversation is not None and not args.no_conversation:
        from agentrl.tracking import conversation

        title = "example: trained tokens are coloured"
        printer.console.print()
        printer.console.print(conversation(diagnosis.conversation, diagnosis.decode, title=title))
    return printer.end()


class FindingPrinter:
    """Prints findings by area, and at the end their numbers."""

    def __init__(self) -> None:
        self.console, self.area, self.counts = terminal(), "", Counter[str]()

    def __call__(self, area: str, finding: "Finding") -> None:
        mark, style = MARKS[finding.level]
        named = "" if area == self.area else area
        self.console.print(Text.assemble((f"{named:<9}", "bold"), " ", (mark, style), " ", finding.text))
        if finding.fix:
            self.console.print(Text(f"{'':<11} → {finding.fix}", style))
        self.area = area
        self.counts[finding.level] += 1

    def end(self) -> int:
        """Print the numbers; returns 1 if there is a problem."""
        good, doubts, bad = (self.counts[level] for level in MARKS)
        self.console.print(f"\n{good} ok, {plural(doubts, 'warning')}, {plural(bad, 'problem')}")
        return int(bad > 0)
