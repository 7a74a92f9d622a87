"""Resource servers that this process starts, each in an interpreter that has NeMo Gym; they end with it."""

import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock

from agentrl.core.errors import InfraError
from agentrl.environments.worker import START, Program, Running

SERVE = Path(__file__).parents[1] / "nemo_gym_program" / "serve.py"


class StartedServer:
    """A server that is started when it is asked for, and again after it died."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._running: Running | None = None
        self._starting = Lock()

    def url(self) -> str:
        """Its address, once it answers. Blocks. Raises InfraError where it does not start."""
        with self._starting:
            if self._running is None or self._running.process.poll() is not None:
                self.close()
                self._running = Running(self.program)
                self._wait(self._running)
            return Path(self._running.address).read_text()

    def close(self) -> None:
        """End the server."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _wait(self, running: Running) -> None:
        until = time.monotonic() + START
        while not running.ready:
            dead = running.process.poll() is not None
            if dead or time.monotonic() > until:
                said = running.last_words() if dead else f"it did not start within {START:g} s"
                self.close()
                raise InfraError(said)
            time.sleep(0.05)


def started(python: str, settings: Mapping[str, object], folder: str) -> StartedServer:
    """The server of these settings, which all rows of this process share."""
    return _started(python, json.dumps(settings), folder)


@cache
def _started(python: str, settings: str, folder: str) -> StartedServer:
    return StartedServer(Program(python, SERVE, json.loads(settings), folder))
