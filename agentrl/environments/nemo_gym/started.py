"""Resource servers that this process starts, each in an interpreter that has NeMo Gym; they end with it."""

import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from agentrl.core.errors import UserError
from agentrl.environments.worker import START, Program, Running

SERVE = Path(__file__).parents[1] / "nemo_gym_program" / "serve.py"


def started(python: str, settings: Mapping[str, object], folder: str) -> str:
    """The URL of a server, which all rows of this process share. Raises UserError where it does not start."""
    running = _running(python, json.dumps(settings), folder)
    if running.process.poll() is not None:  # of an earlier run in this process
        _running.cache_clear()
        running = _running(python, json.dumps(settings), folder)
    return Path(running.address).read_text()


@cache
def _running(python: str, settings: str, folder: str) -> Running:
    running = Running(Program(python, SERVE, json.loads(settings), folder))
    until = time.monotonic() + START
    while not running.ready:
        dead = running.process.poll() is not None
        if dead or time.monotonic() > until:
            said = running.last_words() if dead else f"it did not start within {START:g} s"
            running.end()
            raise UserError(said)
        time.sleep(0.05)
    return running
