"""A folder for weights on their way, which goes when this process does, however it ends."""

import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.engines.servers import watchdog


class Scratch:
    """Invariant: the folder does not outlive this process, SIGKILL included: a watchdog sees to it."""

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
