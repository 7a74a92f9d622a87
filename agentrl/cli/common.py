"""Arguments and loading of the configuration, shared by several commands."""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agentrl.core.compatibility import layers
from agentrl.core.errors import UserError

if TYPE_CHECKING:
    from agentrl.config.schema import Rollout, Trainer
    from agentrl.config.schema.sft import SftTrainer
    from agentrl.config.validate import Check


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add overrides and their options; Hydra's spellings work too."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, and presets as GROUP=NAME")
    parser.add_argument(
        "--config-name", "-cn", metavar="NAME", help="configuration file, without .yaml (default: the command's own)"
    )
    parser.add_argument(
        "--config-dir",
        "--config-path",
        "-cd",
        "-cp",
        metavar="DIR",
        help="folder with your own configuration files, searched first",
    )
    parser.add_argument("--program", help=argparse.SUPPRESS)  # another framework's; its compatibility layer sets it
    parser.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
    parser.add_argument("--help-keys", nargs="?", const="", metavar="WORD", help="list the keys (about WORD) and stop")


def terminal(*, stderr: bool = False) -> Console:
    """A console that colours and breaks nothing by itself."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def row_count(text: str) -> int:
    """A number of rows or turns. Raises ArgumentTypeError for one below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: write 1 or more")
    return int(text)


def load_config(
    args: argparse.Namespace,
    schema: type | None = None,
    default: str = "train",
    checks: "Iterable[Check] | None" = None,
) -> Any:
    """The configuration that the arguments describe, as an object of `schema` (default: Config).

    `default`: the file if neither --config-name nor --program names one. `checks` (default: those of a training
    run). Notes go to stderr. Raises UserError, and SystemExit(0) after --cfg or --help-keys.
    """
    from agentrl.config.schema import Config

    started_once()
    schema = schema or Config
    if args.help_keys is not None:
        from agentrl.cli.page import print_keys

        print_keys(schema, args.help_keys)
        raise SystemExit(0)
    from agentrl.config import resolve
    from agentrl.rewards.checks import RUN

    checks = RUN if checks is None else checks
    only_print = args.cfg is not None
    resolved = resolve(
        args.overrides,
        config_name=chosen_file(args) or default,
        config_dir=args.config_dir,
        schema=schema,
        checks=() if only_print else checks,
        program=args.program,
    )
    print_notes(resolved.notes)
    if only_print:
        print_config(resolved.config, checks)
        raise SystemExit(0)
    from agentrl.training.checkpoint.exported import use_checkpoints

    return use_checkpoints(resolved.config)


def chosen_file(args: argparse.Namespace) -> str | None:
    """The file that the arguments name, or the one of the program that the command stands for."""
    own: str | None = args.config_name
    if own is not None or args.program is None:
        return own
    return next(filter(None, (layer.config_name(args.program) for layer in layers())), None)


def use_idle_cores(trainer: "Trainer | SftTrainer", rollout: "Rollout | None" = None) -> None:
    """Set PyTorch's threads to the number of idle cores; print a note if some are busy.

    Changes nothing on a GPU, with several processes (they divide the cores themselves), if the user set a number, and
    with rollout.deterministic (results repeat bit by bit only with the same number).
    """
    from agentrl.config.derived import deterministic
    from agentrl.config.schema import Trainer
    from agentrl.core.cpu_cores import Host, threads_set_by_user
    from agentrl.engines.gpus import device_kind

    alone = trainer.nnodes * trainer.n_gpus_per_node == 1 and not (rollout and rollout.nnodes)
    steady = rollout is not None and isinstance(trainer, Trainer) and deterministic(trainer, rollout)
    if not alone or threads_set_by_user() or steady:
        return
    if trainer.device == "cuda" or device_kind(trainer.device) == "cuda":
        return
    import torch  # only now: on a GPU, servers are launched before its import

    host, before = Host(), torch.get_num_threads()
    threads = min(before, host.idle())
    if threads < before:
        torch.set_num_threads(threads)
        cores = f"{threads} of {host.allowed()} CPU cores"
        print_notes([f"PyTorch uses {cores}: other programs use the rest; OMP_NUM_THREADS={before} uses all"])


def started_once() -> None:
    """Raises UserError under torchrun: each of its processes would do all the work, in the same folder."""
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"torchrun has started this command {os.environ['WORLD_SIZE']} times: run it without torchrun, and set the "
            "number of processes with trainer.n_gpus_per_node and trainer.nnodes"
        )


def print_notes(notes: Iterable[str]) -> None:
    """Dim lines on stderr."""
    for note in notes:
        terminal(stderr=True).print(f"note: {note}", style="dim", markup=False)


def print_config(config: Any, checks: "Iterable[Check]") -> None:
    """Print YAML on stdout; on stderr, the first error that a run would raise."""
    from agentrl.config import to_yaml
    from agentrl.config.validate import validate

    sys.stdout.write(to_yaml(config))
    try:
        print_notes(validate(config, checks))
    except UserError as error:
        print_notes([f"before it can run: {error}"])
