"""`agentrl merge`: export a checkpoint as a model folder."""

import argparse
from pathlib import Path

from agentrl.cli.common import terminal
from agentrl.core.dtypes import STORED


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("checkpoint", help="global_step_<n>, a run's folder (its newest checkpoint), or a URL")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--dtype", choices=STORED, help="dtype of the weights (default: as trained)")
    parser.add_argument("--merge-adapter", action="store_true", help="merge a LoRA adapter into its base model")
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is already in OUT")


def run(args: argparse.Namespace) -> None:
    """Find the checkpoint, write the folder."""
    from agentrl.core.outputs import check_folder

    check_folder(args.out, "OUT")
    from agentrl.training.checkpoint.merge import merge
    from agentrl.training.checkpoint.resuming import newest

    step = merge(
        newest(args.checkpoint), args.out, dtype=args.dtype, adapter=args.merge_adapter, overwrite=args.overwrite
    )
    terminal(stderr=True).print(f"{args.out}: the policy after step {step}")
