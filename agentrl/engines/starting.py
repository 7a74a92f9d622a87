"""The start of a run in this process: servers start first, and load while all else is made ready."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.derived import processes
from agentrl.config.schema import Config
from agentrl.engines.gpus import device_kind
from agentrl.engines.launching import Servers, launch
from agentrl.tracking.start_times import StartTimes


@dataclass
class Start:
    """The servers that were launched, until a runtime takes them, and the seconds of the start."""

    servers: Servers | None = None
    times: StartTimes = field(default_factory=StartTimes)
    workers: Any = None
    """A future of the workers on Ray, see `agentrl.runtime.ray.servers`; None: they are taken, or there are none."""

    def take(self) -> Servers | None:
        """The servers, which the caller now closes."""
        servers, self.servers = self.servers, None
        return servers


def start_servers(config: Config, times: StartTimes | None = None) -> Start:
    """Launch the servers of a run whose work is in this process. Raises UserError."""
    alone = processes(config.trainer, config.rollout) == 1
    servers = launch(config, device_kind(config.trainer.device)) if alone else None
    return Start(servers, times=times or StartTimes())


@contextmanager
def starting(config: Config, times: StartTimes | None) -> Iterator[Start]:
    """`start_servers` for the body, which imports and opens a runtime. Servers that none has taken end with it."""
    start = start_servers(config, times)
    try:
        yield start
    finally:
        if (left := start.take()) is not None:
            asyncio.run(left.close())
