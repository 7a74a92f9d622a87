"""Containers of rows: made from an image, used by tools, programs and tests, always removed."""

from agentrl.containers.archive import packed, unpack
from agentrl.containers.commands import Command, CommandContainer, piped
from agentrl.containers.contract import Container, ContainerProvider, ContainerSpec, Done, Network, Services
from agentrl.containers.output import OutputEnds
from agentrl.containers.shell_scripts import KILL

__all__ = [
    "KILL",
    "Command",
    "CommandContainer",
    "Container",
    "ContainerProvider",
    "ContainerSpec",
    "Done",
    "Network",
    "OutputEnds",
    "Services",
    "packed",
    "piped",
    "unpack",
]
