"""`agentrl engine`: environments for the engines that run in servers of their own.

agentrl engine install sglang            on a machine with a GPU
agentrl engine install sglang --cpu      for development and tests, without one
agentrl engine list                      what is installed, and where
"""

import argparse
from pathlib import Path

from agentrl.core.errors import UserError

HELP = "install an inference engine in an environment of its own"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command a task."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    install = tasks.add_parser("install", help="make the environment; takes minutes and gigabytes")
    install.add_argument("engine", metavar="ENGINE", help="sglang or vllm")
    install.add_argument("--cpu", action="store_true", help="a build for machines without a GPU")
    install.add_argument("--dir", type=Path, metavar="DIR", help="where (default: a folder that runs look in)")
    install.add_argument("--python", metavar="PYTHON", help="the interpreter to build on (default: this one)")
    tasks.add_parser("list", help="show what is installed")


def run(args: argparse.Namespace) -> int:
    """Install, or show."""
    from rich.console import Console

    from agentrl.engines.servers.install import RECIPES, install, installed
    from agentrl.engines.servers.interpreters import environments

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if args.task == "list":
        for name in RECIPES:
            Console(highlight=False, soft_wrap=True).print(f"{name}: {installed(environments() / name, name)}")
        return 0
    if args.engine not in RECIPES:
        raise UserError(f"{args.engine}: no such engine; there is {', '.join(RECIPES)}")
    folder = (args.dir or environments() / args.engine).expanduser().resolve()
    with console.status(f"installing {args.engine} in {folder}") as status:
        install(args.engine, folder, cpu=args.cpu, python=args.python, say=status.update)
    console.print(f"{args.engine} is ready: {installed(folder, args.engine)}")
    if args.dir:
        console.print(f"runs find it with rollout.engine_python={folder}/bin/python")
    return 0
