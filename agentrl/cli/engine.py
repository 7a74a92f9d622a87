"""`agentrl engine`: install inference engines, each in its own Python environment.

agentrl engine install sglang            on a machine with a GPU
agentrl engine install sglang --cpu      for development and tests without a GPU
agentrl engine list                      installed engines and their folders
"""

import argparse
from pathlib import Path

from agentrl.cli.common import terminal
from agentrl.core.errors import UserError
from agentrl.core.paths import expanded


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    install = tasks.add_parser("install", help="create the environment (takes minutes and gigabytes)")
    install.add_argument("engine", metavar="ENGINE", help="sglang or vllm")
    install.add_argument("--cpu", action="store_true", help="a build for machines without a GPU")
    install.add_argument("--dir", type=Path, metavar="DIR", help="folder (default: one that runs find by themselves)")
    install.add_argument("--python", metavar="PYTHON", help="Python interpreter to use (default: this one)")
    tasks.add_parser("list", help="list installed engines")


def run(args: argparse.Namespace) -> None:
    """Install or list."""
    from agentrl.engines.servers.installation import RECIPES, environments, install, installed

    if args.task == "list":
        for name in RECIPES:
            terminal().print(f"{name}: {installed(environments() / name, name)}")
        return
    if args.engine not in RECIPES:
        raise UserError(f"{args.engine}: no such engine; choose one of {', '.join(RECIPES)}")
    folder, console = expanded(args.dir or environments() / args.engine).resolve(), terminal(stderr=True)
    with console.status(f"installing {args.engine} in {folder}") as status:
        install(args.engine, folder, cpu=args.cpu, python=args.python, say=status.update)
    console.print(f"{args.engine} is ready: {installed(folder, args.engine)}")
    if args.dir:
        console.print(f"to use it, set rollout.engine_python={folder}/bin/python")
