"""Runs an agent program under a watchdog: nothing of it outlives the rollout or the trainer.

The watchdog (agentrl.engines.servers.watchdog) gives the program a process group of its own, adopts its orphans, and
ends them all when the program ends, when it is asked to, or when the trainer dies, after SIGKILL too.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.core.errors import last_line
from agentrl.core.outputs import tail
from agentrl.core.tasks import ends_first
from agentrl.engines.servers import watchdog

PASSED_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM"),
    *("DOCKER_HOST", "DOCKER_CONTEXT"),
)
"""Variables of this process that a program gets, and Docker's address for one that works in its row's container: no
other can hold a secret of the trainer's."""
KEPT_OUTPUT_BYTES = 20_000
"""Bytes of a program's output that are kept."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int | None
    """Its exit code, negative for a signal; None: it was ended by us."""
    output: str
    """The end of what it wrote, to stdout and stderr."""

    @property
    def last_line(self) -> str:
        """The last line with text in it."""
        return last_line(self.output)[:300] or "it wrote nothing"


async def run_command(
    words: Sequence[str], folder: Path, log: Path, env: Mapping[str, str], until: Awaitable[Any]
) -> Ended:
    """Run a program in `folder` until it ends or `until` is done."""
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-S", "-E", watchdog.__file__, "--apart", str(folder.parent), *words],
            stdin=PIPE,  # its end tells the watchdog that we are gone
            stdout=file,
            stderr=STDOUT,
            cwd=folder,
            env={**passed, **env, "PWD": str(folder)},
            start_new_session=True,  # Ctrl-C is for us; we then stop the program
        )
    try:
        ended = await ends_first(process.wait(), until)
    finally:
        await _stop(process)
    code = process.returncode if ended else None
    if code is not None and code > 192:  # the watchdog passes on -9, say, which a shell reads as 247
        code -= 256
    return Ended(code, tail(log, KEPT_OUTPUT_BYTES))


async def _stop(process: Process) -> None:
    """End the program and its children."""
    if process.returncode is None and process.stdin is not None:
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(watchdog.STOP)
            process.stdin.close()
    await process.wait()
