"""`agentrl plan`: the layouts of a run on GPUs that you do not have yet, with memory and seconds of each.

It reads the model's configuration alone, and the settings of `agentrl train`. A key that you set keeps its value.

Examples:
    # which layouts of a model fit on eight H100, and the fastest
    agentrl plan models/my-model --gpus 8
    # on 64 H200, with longer answers
    agentrl plan MODEL --gpus 64 --gpu h200 data.max_response_length=16384
    # measure this machine, then plan with it
    agentrl plan MODEL --gpus 8 --measure mine.json
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agentrl.cli.common import add_config_arguments, load_config
from agentrl.core.errors import UserError
from agentrl.core.outputs import write_atomic

if TYPE_CHECKING:
    from agentrl.doctor.plan import Plan

ROWS = 10
"""Layouts that are shown."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The model, the GPUs, and overrides."""
    add_config_arguments(parser)
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs in all (default 8)")
    parser.add_argument("--gpu", default="h100", metavar="KIND", help="h100 (default), h200, or a file of --measure")
    parser.add_argument("--per-node", type=int, default=8, metavar="N", help="GPUs of a machine (default 8)")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure this machine, write FILE and use it")


def run(args: argparse.Namespace) -> None:
    """Print the layouts that fit."""
    args.overrides = [word if "=" in word else f"model.path={word}" for word in args.overrides]
    args.config_name = args.config_name or "recipes/base"
    config = load_config(args, checks=())
    if not config.model.path:
        raise UserError("agentrl plan MODEL: name a model, a folder or a hub id")
    from agentrl.doctor.memory import size_of
    from agentrl.doctor.plan import plans
    from agentrl.doctor.speeds import measured, speeds_of

    size, speeds = size_of(config), speeds_of(args.gpu)
    if args.measure:
        from agentrl.training import device_for

        speeds = measured(device_for("auto"), speeds)
        write_atomic(args.measure, [json.dumps(asdict(speeds), indent=1)])
    given = {word.partition("=")[0].lstrip("+") for word in args.overrides}
    show(plans(config, size, speeds, args.gpus, per_node=args.per_node, fixed=given), args)


def show(found: "list[Plan]", args: argparse.Namespace) -> None:
    """The table, the command of the fastest, and what is not known."""
    from agentrl.doctor.plan import MOST_GPUS

    best, size, speeds = found[0], found[0].layout.size, found[0].layout.speeds
    title = f"{size.parameters / 1e9:.1f}B parameters on {args.gpus} x {speeds.name}: GiB of a GPU, seconds of a step"
    table = Table("trains + samples", "GiB", *best.seconds, "tokens/s", title=title)
    for plan in found[:ROWS]:
        seconds = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in plan.seconds.values())
        speed = f"{plan.speed:,.0f} ± {plan.speed * plan.error:,.0f}"
        table.add_row(described(plan), f"{max(plan.memory):.0f}", *seconds, speed)
    console = Console(highlight=False, soft_wrap=True, width=130)
    console.print(table)
    command = " ".join(["agentrl train --config-name", args.config_name, *args.overrides, *best.words])
    console.print(
        f"The fastest: {command}\nNot counted: tools, rewards, waits for them. Not measured: {speeds.assumed}."
    )
    if args.gpus > MOST_GPUS:
        console.print(f"Untried: no run on more than {MOST_GPUS} GPUs was ever measured; all of this is arithmetic.")


def described(plan: "Plan") -> str:
    """The GPUs, and the keys that split the model or save memory."""
    words = [word.rpartition(".")[2] for word in plan.words if "nodes=" not in word and "_per_node=" not in word]
    return ", ".join([f"{plan.layout.ranks} + {plan.layout.apart or 'the same'}", *words])
