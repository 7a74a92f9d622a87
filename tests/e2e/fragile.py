"""A Ray worker that goes wrong; in a file of its own, so that it starts without PyTorch."""

import os
import time

from agentrl.core.errors import UserError
from agentrl.http.client import ServerLost


class Fragile:
    """A worker that goes wrong."""

    def location(self) -> None:
        """As workers do."""

    def take_warnings(self) -> list[object]:
        """As workers do."""
        return []

    def call(self, how: str) -> str:
        """Fail as told."""
        if how == "mistake":
            raise UserError("a.key=1: give 2")
        if how == "bug":
            raise KeyError("no such\nthing")
        if how == "server":
            raise ServerLost("gone")
        if how == "stuck":
            time.sleep(20)
        if how == "death":
            os._exit(1)
        return how
