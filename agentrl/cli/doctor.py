"""`agentrl doctor`: what would go wrong in a run, before a GPU is spent on it.

    agentrl doctor --config-name my-run rollout.multi_turn.enable=true

Settings are those of `agentrl train`. It needs the tokenizer and three rows: no engine, no GPU, no weights.
"""

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from agentrl.cli.common import add_config_arguments, load_config, use_idle_cores
from agentrl.core.plurals import plural

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl.doctor import Finding, Patient

HELP = "what would go wrong in a run, before a GPU is spent on it"

EXAMPLES = (
    ("the settings of a run", "agentrl doctor --config-name my-run rollout.multi_turn.enable=true"),
    ("validation rows, ten of them", "agentrl doctor --config-name my-run --split val --rows 10"),
)

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, whose rows, and how much to show."""
    add_config_arguments(parser)
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="rows to look at (default 3)")
    parser.add_argument("--split", choices=["train", "val"], default="train", help="whose rows (default train)")
    parser.add_argument("--no-conversation", action="store_true", help="leave the coloured conversation out")


def run(args: argparse.Namespace) -> int:
    """Print findings as they come; 1 when one of them would break training."""
    config = load_config(args, checks=())
    use_idle_cores(config.trainer, config.rollout)
    from rich.console import Console

    from agentrl.doctor import examine

    console = Console(highlight=False, soft_wrap=True)
    areas: list[str] = []

    def show(area: str, finding: "Finding") -> None:
        line(console, "" if areas[-1:] == [area] else area, finding)
        areas.append(area)

    patient = examine(config, show, split=args.split, count=args.rows)
    if not args.no_conversation:
        conversation(console, patient)
    counts = Counter(finding.level for finding in patient.findings)
    console.print(
        f"\n{counts['ok']} ok, {plural(counts['warning'], 'warning')}, {plural(counts['problem'], 'problem')}"
    )
    return int(counts["problem"] > 0)


def print_help() -> None:
    """A page that teaches how configurations are put together."""
    from agentrl.cli.page import print_page
    from agentrl.config.schema import Config

    print_page("doctor", HELP, Config, EXAMPLES, configure)


def line(console: "Console", area: str, finding: "Finding") -> None:
    """A finding, and its mend below it."""
    from rich.text import Text

    mark, style = MARKS[finding.level]
    console.print(Text.assemble((f"{area:<9}", "bold"), " ", (mark, style), " ", finding.text))
    if finding.mend:
        console.print(Text(f"{'':<11} → {finding.mend}", style))


def conversation(console: "Console", patient: "Patient") -> None:
    """The made-up conversation, what would be trained in colour."""
    from agentrl.tracking import conversation as drawn

    if patient.conversation is not None:
        console.print()
        console.print(drawn(patient.conversation, patient.decode, title="made up: what would be trained is in colour"))
