"""`agentrl`: runs a command and reports errors in one line.

Exit codes: 0 done, 1 an engine, tool or service failed, 2 wrong input, 130 interrupted. Any other error is a bug and
shows its traceback.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from agentrl import __version__
from agentrl.core.compatibility import Command, layers
from agentrl.core.cpu_cores import wait_passively
from agentrl.core.errors import InfraError, UserError
from agentrl.core.outputs import trouble as disk_trouble

COMMANDS = {
    "data": Command("agentrl.cli.data", "write training rows and demonstrations for a task", "Prepare"),
    "model": Command(
        "agentrl.cli.model", "prepare a model: a small pretrained chat model, or a tiny one from scratch", "Prepare"
    ),
    "config": Command("agentrl.cli.config", "explain keys, and check configurations written for verl", "Prepare"),
    "engine": Command("agentrl.cli.engine", "install an inference engine in an environment of its own", "Prepare"),
    "completion": Command(
        "agentrl.cli.completion", "set up shell completion of commands, options, keys and values", "Prepare"
    ),
    "sft": Command("agentrl.cli.sft", "fine-tune a model on demonstrations (supervised)", "Train"),
    "train": Command(
        "agentrl.cli.train", "train a model with reinforcement learning, with tools, over several turns", "Train"
    ),
    "merge": Command("agentrl.cli.merge", "export a checkpoint as a model folder in Hugging Face format", "Train"),
    "doctor": Command("agentrl.cli.doctor", "check a run before it spends GPU time", "Inspect"),
    "generate": Command("agentrl.cli.generate", "answer rows with a model and store the answers", "Measure"),
    "eval": Command("agentrl.cli.eval", "score stored answers or a model: means, pass@k, intervals", "Measure"),
    "rollout": Command(
        "agentrl.cli.rollout", "run a few rows and show the conversations, with trained tokens coloured", "Inspect"
    ),
    "tasks": Command("agentrl.cli.tasks", "check task folders; remove what runs with containers have left", "Inspect"),
    "tools": Command(
        "agentrl.cli.tools", "call each tool of a YAML file once and show its schema and result", "Inspect"
    ),
    "view": Command("agentrl.cli.view", "show runs in a browser: curves, conversations, timelines", "Inspect"),
    "gateway": Command(
        "agentrl.cli.gateway",
        "serve a model to agents over OpenAI's and Anthropic's protocols, recorded token by token",
        "Serve",
    ),
    "sandbox": Command("agentrl.cli.sandbox", "run untrusted code in isolation: as a server, or one file", "Serve"),
}

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


class Parser(argparse.ArgumentParser):
    """argparse, with errors reported like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage."""
        raise UserError(f"{message}; see `{self.prog} --help`")


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
        raise UserError(f"{name}: no such command; choose one of {', '.join(commands())}")
    return run_command(name, importlib.import_module(found.module), rest)


def commands() -> dict[str, Command]:
    """All commands, those of compatibility layers included."""
    added = {name: command for layer in layers() for name, command in layer.commands().items() if " " not in name}
    return COMMANDS | added


def run_command(name: str, module: ModuleType, args: list[str]) -> int:
    """Parse a command's arguments and run it; a module with `print_help` writes its own help page."""
    if hasattr(module, "print_help") and not {"-h", "--help"}.isdisjoint(args):
        module.print_help()
        return 0
    parser = Parser(
        prog=f"agentrl {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    if extra:
        namespace.overrides += extra
    return namespace


def report(message: str, details: Sequence[str] = (), *, label: str = "error") -> None:
    """One red line on stderr, below its details."""
    from rich.console import Console
    from rich.text import Text

    for detail in details:
        Console(stderr=True, soft_wrap=True).print(Text(f"  {detail}", "dim"))
    line = Text.assemble((f"{label}: ", "bold red"), (" ".join(message.split()), "red"))
    Console(stderr=True, soft_wrap=True).print(line)


def print_help() -> None:
    """Show the commands in groups, and the first steps."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]agentrl {__version__}[/]: {TITLE}\n\n  agentrl COMMAND [...]")
    shown = commands()
    for group in dict.fromkeys(command.group for command in shown.values()):
        console.print(f"\n[bold]{group}[/]")
        for name, command in shown.items():
            if command.group == group:
                console.print(f"  [cyan]{name:<10}[/] {command.help}")
    console.print("\n[bold]First steps[/]")
    for why, line in FIRST_STEPS:
        console.print(f"  [dim]# {why}[/]\n  {line}")
    console.print("\nMore: `agentrl COMMAND --help`. `--version` prints the version, `--traceback` shows tracebacks.")
