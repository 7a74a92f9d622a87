"""`agentrl config`: explain and search keys, check files written for verl.

agentrl config explain rollout.n actor_rollout_ref.rollout.tensor_parallel_size
agentrl config search temperature
agentrl config check run_grpo.sh
"""

import argparse
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from agentrl.cli.commands import added_commands
from agentrl.cli.common import terminal
from agentrl.core.errors import UserError

if TYPE_CHECKING:
    from agentrl.config.explain import Explanation


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    explain = actions.add_parser("explain", help="show type, default, meaning and old names of keys")
    explain.add_argument("keys", nargs="+", metavar="KEY", help="a key, a section, or a verl name")
    search = actions.add_parser("search", help="list the keys with a word in name or meaning")
    search.add_argument("word", metavar="WORD", help="a word, or a part of one")
    explain.set_defaults(run=_explain)
    search.set_defaults(run=_search)
    for command in added_commands():
        if command.name.startswith("config "):
            module, added = command.load(), actions.add_parser(command.name.removeprefix("config "), help=command.help)
            module.configure(added)
            added.set_defaults(run=module.run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command; returns its exit code."""
    return int(args.run(args) or 0)


def _search(args: argparse.Namespace) -> None:
    from agentrl.cli.page import print_keys
    from agentrl.config.schema import Config

    print_keys(Config, args.word)


def _explain(args: argparse.Namespace) -> None:
    from agentrl.config.explain import explain
    from agentrl.config.schema.commands import SCHEMAS

    console, unknown = terminal(), []
    for name in args.keys:
        try:
            for explanation in explain(name, SCHEMAS):
                _print_explanation(console, name, explanation)
        except UserError as error:
            unknown.append(str(error))
    if unknown:
        raise UserError("; ".join(unknown))


def _print_explanation(console: Console, name: str, found: "Explanation") -> None:
    title = found.name if name == found.name else f"{name} [not bold]is[/] {found.name}"
    commands = ", ".join(f"agentrl {command}" for command in found.commands)
    console.print(f"\n[bold]{title}[/]  [dim]{commands}[/]")
    for label, text in found.facts:
        console.print(f"  [cyan]{label:<12}[/]{escape(text)}")
