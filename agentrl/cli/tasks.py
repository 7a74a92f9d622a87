"""Tasks in containers.

agentrl tasks clean            remove containers and networks that ended runs of this machine have left
agentrl tasks clean --images   the images that runs have built, too
"""

import argparse

HELP = "remove what runs with containers have left"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(dest="task", metavar="COMMAND", required=True)
    clean = commands.add_parser("clean", help="remove containers, networks and images that runs have left")
    clean.add_argument("--images", action="store_true", help="also remove the images that runs have built")


def run(args: argparse.Namespace) -> int:
    """Run one of them. Raises UserError, InfraError."""
    return _clean(images=args.images)


def _clean(*, images: bool) -> int:
    from rich.console import Console

    from agentrl.containers.docker.clean import clean

    removed = clean(images=images)
    console = Console(highlight=False, soft_wrap=True)
    for name in removed:
        console.print(f"removed {name}")
    if not removed:
        console.print("nothing was left")
    return 0
