"""`agentrl cluster check`: check the machines of a Ray cluster before a run.

It takes the settings of `agentrl train`, a minute, and all machines that are large enough.

Examples:
    # check this machine, or the cluster of `ray start`
    agentrl cluster check trainer.n_gpus_per_node=8
    # check the cluster of a run
    agentrl cluster check --config-name my-run trainer.nnodes=4
"""

import argparse
import signal
from typing import NoReturn

from agentrl.cli.common import add_config_arguments, load_config
from agentrl.cli.doctor import FindingPrinter
from agentrl.core.errors import InfraError

LIMIT = 180
"""Seconds after which a machine that does not answer ends the check: Ray itself waits forever."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The action, then settings."""
    parser.add_argument("action", choices=["check"], help="check the machines")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print findings as they come; returns 1 if one of them is a problem."""
    config = load_config(args, checks=())
    from agentrl.runtime.ray import need_ray

    need_ray(config)
    from agentrl.doctor.cluster import cluster

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT)
    printer = FindingPrinter()
    for area, finding in cluster(config):
        printer(area, finding)
    return printer.end()


def too_late(number: int, frame: object) -> NoReturn:
    """End the check."""
    raise InfraError(f"not all machines answered in {LIMIT} s: open all TCP ports between them, and see `ray status`")
