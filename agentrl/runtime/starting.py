"""The start of a run: servers and workers start first, and load while all else is made ready."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.derived import processes
from agentrl.config.schema import Config
from agentrl.engines.gpus import device_kind
from agentrl.engines.launching import Servers, launch
from agentrl.runtime.ray import need_ray
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

    def close(self) -> None:
        """End what no runtime has taken."""
        if (left := self.take()) is not None:
            asyncio.run(left.close())
        if self.workers is not None and self.workers.exception() is None:
            self.workers.result().stack.close()


def start_servers(config: Config, times: StartTimes | None = None) -> Start:
    """Launch the servers of a run whose work is in this process. Raises UserError."""
    alone = processes(config.trainer, config.rollout) == 1
    servers = launch(config, device_kind(config.trainer.device)) if alone else None
    return Start(servers, times=times or StartTimes())


@contextmanager
def starting(config: Config, times: StartTimes | None) -> Iterator[Start]:
    """`start_servers`, or the workers on Ray, for the body, which imports and opens a runtime. What none has taken ends
    with it. Raises UserError, also without Ray."""
    start = start_servers(config, times)
    with ThreadPoolExecutor(1, "agentrl-ray") as thread:
        try:
            if processes(config.trainer, config.rollout) > 1:
                need_ray(config)
                from agentrl.runtime.ray.servers import start_workers

                start.workers = thread.submit(start_workers, config)
            yield start
        finally:
            start.close()
