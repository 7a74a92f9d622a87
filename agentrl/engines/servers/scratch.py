"""A folder for weights as files, which is removed when this process ends, SIGKILL included."""

import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.engines.servers import watchdog


class Scratch:
    """A temporary folder. Invariant: it does not outlive this process, since a watchdog process removes it."""

    def __init__(self, parent: Path | str) -> None:
        """Makes a new folder below `parent`."""
        self.path = Path(tempfile.mkdtemp(prefix="agentrl-", dir=parent))
        self._watchdog = subprocess.Popen(
            [sys.executable, "-S", "-E", watchdog.__file__, str(self.path)],
            stdin=subprocess.PIPE,  # its end tells the watchdog that we are gone
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove it now; safe to call twice."""
        self._watchdog.communicate()
