"""`agentrl`: runs a command and reports errors in one line.

Exit codes: 0 done, 1 an engine, tool or service failed, 2 wrong input, 130 interrupted. Any other error is a bug and
shows its traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl import __version__
from agentrl.cli.commands import COMMANDS, Parser, commands
from agentrl.core.compatibility import Command
from agentrl.core.cpu_cores import wait_passively
from agentrl.core.errors import InfraError, UserError, did_you_mean
from agentrl.core.outputs import trouble as disk_trouble

TITLE = "reinforcement learning for language models that use tools over several turns"

FIRST_STEPS = (
    ("get a small chat model that runs on a laptop", "agentrl model smollm2 models/smollm2"),
    ("write a task: rows, tools, reward", "agentrl data arithmetic --out data/arithmetic"),
    (
        "run the untrained model on a few rows",
        "agentrl rollout model.path=models/smollm2 data.train_files=data/arithmetic/train.parquet",
    ),
    ("see all settings of a run", "agentrl train --help"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from agentrl.cli.completion import answer

        answer()
    args = list(sys.argv[1:] if argv is None else argv)
    traceback = "--traceback" in args
    wait_passively(os.environ)
    try:
        return dispatch([arg for arg in args if arg != "--traceback"])
    except (UserError, InfraError) as error:
        if traceback:
            raise
        report(str(error), error.details)
        return 2 if isinstance(error, UserError) else 1
    except OSError as error:
        line = disk_trouble(error)
        if traceback or line is None:
            raise
        report(line)
        return 1
    except KeyboardInterrupt as stop:
        report(str(stop) or "interrupted", label="stopped" if str(stop) else "error")
        return 130


def dispatch(args: list[str]) -> int:
    """Run the command that the arguments name. Raises UserError."""
    if not args or args[0] in ("-h", "--help", "help"):
        print_help()
        return 0
    if args[0] == "--version":
        sys.stdout.write(f"agentrl {__version__}\n")
        return 0
    name, *rest = args
    found = COMMANDS.get(name) or commands().get(name)
    if found is None:
        guess = did_you_mean(name, commands())
        raise UserError(f"{name}: no such command; {guess}choose one of {', '.join(commands())}")
    return run_command(found, rest)


def run_command(command: Command, args: list[str]) -> int:
    """Parse a command's arguments and run it; one that takes keys has a help page about them."""
    module = command.load()
    if command.keys and not {"-h", "--help"}.isdisjoint(args):
        from agentrl.cli.page import print_page

        print_page(command, module)
        return 0
    parser = Parser(
        prog=f"agentrl {command.name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.configure(parser)
    parser.add_argument("--traceback", action="store_true", help="show the full traceback of an error")
    return int(module.run(parse(parser, args)) or 0)


def parse(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Arguments; overrides may stand between and after options, which argparse alone does not allow."""
    namespace, extra = parser.parse_known_args(args)
    unknown = [arg for arg in extra if arg.startswith("-") or not hasattr(namespace, "overrides")]
    if unknown:
        parser.error(f"{unknown[0]}: no such option")
    for name, value in vars(namespace).items():
        if name != "overrides":
            setattr(namespace, name, _expanded(value))
    if extra:
        namespace.overrides += extra
    return namespace


def _expanded(value: Any) -> Any:
    """A value of an option with `~/` as the home folder: a shell leaves it in `--out=~/x`."""
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    home = isinstance(value, Path | str) and str(value).startswith("~/")
    return type(value)(os.path.expanduser(value)) if home else value


def report(message: str, details: Sequence[str] = (), *, label: str = "error") -> None:
    """One red line on stderr, below its details."""
    from rich.text import Text

    from agentrl.cli.common import terminal

    lines = [Text(f"  {detail}", "dim") for detail in details]
    lines.append(Text.assemble((f"{label}: ", "bold red"), (" ".join(message.split()), "red")))
    terminal(stderr=True).print(*lines, sep="\n")


def print_help() -> None:
    """Show the commands in groups, and the first steps."""
    from agentrl.cli.common import terminal

    console = terminal()
    console.print(f"[bold]agentrl {__version__}[/]: {TITLE}\n\n  agentrl COMMAND [...]")
    shown = commands().values()
    for group in dict.fromkeys(command.group for command in shown):
        console.print(f"\n[bold]{group}[/]")
        for command in shown:
            if command.group == group:
                console.print(f"  [cyan]{command.name:<10}[/] {command.help}")
    console.print("\n[bold]First steps[/]")
    for why, line in FIRST_STEPS:
        console.print(f"  [dim]# {why}[/]\n  {line}")
    console.print("\nMore: `agentrl COMMAND --help`. `--version` prints the version, `--traceback` shows tracebacks.")
