"""Containers of rows: made from an image, used by tools, programs and tests, always removed."""

from agentrl.containers.contract import Container, ContainerProvider, ContainerSpec, Done, Network

__all__ = ["Container", "ContainerProvider", "ContainerSpec", "Done", "Network"]
