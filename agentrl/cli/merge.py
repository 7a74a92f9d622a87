"""`agentrl merge`: a checkpoint as a model folder."""

import argparse
from pathlib import Path

from rich.console import Console

HELP = "write a checkpoint as a model folder that other programs load"


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("checkpoint", help="global_step_<n>, or a run's folder: its newest one; a URL is fetched first")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the weights; default: as they were trained"
    )
    parser.add_argument(
        "--merge-adapter", action="store_true", help="fold a LoRA adapter into its base model and write that"
    )


def run(args: argparse.Namespace) -> int:
    """Find the checkpoint, write the folder."""
    from agentrl.errors import UserError
    from agentrl.remote import local_copy
    from agentrl.runtime.checkpoints import FOLDER
    from agentrl.training import checkpoints
    from agentrl.training.merge import merge

    path = Path(local_copy(args.checkpoint, "checkpoint"))
    if not (path / checkpoints.MANIFEST).is_file():
        newest = checkpoints.latest(path / FOLDER) or checkpoints.latest(path)
        if newest is None:
            raise UserError(f"{path} is no checkpoint, and holds none; name a folder global_step_<n>")
        path = newest
    step = merge(path, args.out, dtype=args.dtype, adapter=args.merge_adapter)
    Console(stderr=True).print(f"{args.out}: the policy after step {step}", highlight=False)
    return 0
