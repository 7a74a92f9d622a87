"""`agentrl`: finds the command, runs it, and says in one line what went wrong.

Exit codes: 0 done, 1 an engine, tool or service failed, 2 the person asked for something that cannot be done, 130
interrupted. Anything else is a bug, and shows its traceback.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

from agentrl import __version__
from agentrl.core.cpu_cores import wait_passively
from agentrl.core.errors import InfraError, UserError
from agentrl.core.outputs import trouble as disk_trouble


@dataclass(frozen=True)
class Command:
    """One line of `agentrl --help`; the module is imported when the command is called."""

    module: str
    help: str
    group: str


COMMANDS = {
    "data": Command("agentrl.cli.data", "write ready-to-train rows for a task, and demonstrations", "Prepare"),
    "model": Command(
        "agentrl.cli.model", "prepare a model: a small pretrained chat model, or a tiny one from scratch", "Prepare"
    ),
    "config": Command(
        "agentrl.cli.config", "what a key means, and what becomes of a configuration written for verl", "Prepare"
    ),
    "engine": Command("agentrl.cli.engine", "install an inference engine in an environment of its own", "Prepare"),
    "completion": Command(
        "agentrl.cli.completion", "let a shell complete commands, options, keys and values", "Prepare"
    ),
    "sft": Command("agentrl.cli.sft", "warm a model up on demonstrations", "Train"),
    "train": Command("agentrl.cli.train", "make a model better at a task, with tools, over several turns", "Train"),
    "merge": Command("agentrl.cli.merge", "write a checkpoint as a model folder that other programs load", "Train"),
    "verl": Command("agentrl.cli.verl", "run a launch or data script that was written for verl, as it is", "Train"),
    "doctor": Command("agentrl.cli.doctor", "what would go wrong in a run, before a GPU is spent on it", "Look"),
    "generate": Command("agentrl.cli.generate", "answer rows with a model and keep the answers", "Measure"),
    "eval": Command("agentrl.cli.eval", "score stored answers, or a model's: means, pass@k, intervals", "Measure"),
    "rollout": Command(
        "agentrl.cli.rollout", "run a few rows and show the conversations, trained tokens coloured", "Look"
    ),
    "tools": Command("agentrl.cli.tools", "call each tool of a YAML once, and show what the model sees of it", "Look"),
    "view": Command("agentrl.cli.view", "look at runs in a browser: curves, conversations, timelines", "Look"),
    "sandbox": Command(
        "agentrl.cli.sandbox", "run code that a model wrote: a server, one file, or what this host can isolate", "Serve"
    ),
}

TITLE = "reinforcement learning for language models that act over several turns with tools"

FIRST_STEPS = (
    ("a real chat model, small enough for a laptop", "agentrl model smollm2 models/smollm2"),
    ("a task: rows, tools, a reward", "agentrl data arithmetic --out data/arithmetic"),
    (
        "see what the model does before training it",
        "agentrl rollout model.path=models/smollm2 data.train_files=data/arithmetic/train.parquet",
    ),
    ("everything a run can be told", "agentrl train --help"),
)


class Parser(argparse.ArgumentParser):
    """argparse, with mistakes reported the way all others are."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage."""
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could follow
        from agentrl.cli.completion import answer

        answer()
    args = list(sys.argv[1:] if argv is None else argv)
    traceback = "--traceback" in args
    wait_passively(os.environ)
    try:
        return dispatch([arg for arg in args if arg != "--traceback"])
    except UserError as error:
        if traceback:
            raise
        report(str(error), error.details)
        return 2
    except InfraError as error:
        if traceback:
            raise
        report(str(error))
        return 1
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
    """Run what the arguments name. Raises UserError."""
    if not args or args[0] in ("-h", "--help", "help"):
        print_help()
        return 0
    if args[0] == "--version":
        sys.stdout.write(f"agentrl {__version__}\n")
        return 0
    name, *rest = args
    if name not in COMMANDS:
        raise UserError(f"{name}: no such command; there are {', '.join(COMMANDS)}")
    return run_command(name, importlib.import_module(COMMANDS[name].module), rest)


def run_command(name: str, module: ModuleType, args: list[str]) -> int:
    """Parse a command's arguments and run it; a module with `print_help` writes its own help page."""
    if hasattr(module, "print_help") and not {"-h", "--help"}.isdisjoint(args):
        module.print_help()
        return 0
    parser = Parser(
        prog=f"agentrl {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.configure(parser)
    parser.add_argument("--traceback", action="store_true", help="show where a mistake was found")
    return int(module.run(parse(parser, args)) or 0)


def parse(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Arguments; overrides may stand between and after options, which argparse alone does not allow."""
    namespace, extra = parser.parse_known_args(args)
    unknown = [arg for arg in extra if arg.startswith("-") or not hasattr(namespace, "overrides")]
    if unknown:
        parser.error(f"{unknown[0]}: no such option")
    if extra:
        namespace.overrides += extra
    return namespace


def report(message: str, details: Sequence[str] = (), *, label: str = "error") -> None:
    """One red line on stderr, after those that led to it."""
    from rich.console import Console
    from rich.text import Text

    for detail in details:
        Console(stderr=True, soft_wrap=True).print(Text(f"  {detail}", "dim"))
    line = Text.assemble((f"{label}: ", "bold red"), (" ".join(message.split()), "red"))
    Console(stderr=True, soft_wrap=True).print(line)


def print_help() -> None:
    """What there is, in groups, and where to begin."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]agentrl {__version__}[/]: {TITLE}\n\n  agentrl COMMAND [...]")
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        console.print(f"\n[bold]{group}[/]")
        for name, command in COMMANDS.items():
            if command.group == group:
                console.print(f"  [cyan]{name:<10}[/] {command.help}")
    console.print("\n[bold]First steps[/]")
    for why, line in FIRST_STEPS:
        console.print(f"  [dim]# {why}[/]\n  {line}")
    console.print(
        "\n`agentrl COMMAND --help` says more; `--version` prints the version, `--traceback` shows tracebacks."
    )
