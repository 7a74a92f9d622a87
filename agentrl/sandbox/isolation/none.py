"""No isolation: a work folder of its own and limits on each process, nothing else. For code one would run anyway."""

import os
import shutil

from agentrl.sandbox.isolation import Tier
from agentrl.sandbox.job import Limits


class Unisolated(Tier):
    """Runs with the rights of the server."""

    name = "none"

    def enter(self, slot: int, limits: Limits) -> None:
        """A folder by slot."""
        super().enter(slot, limits)
        self.work = os.path.join(self.host.folder, str(slot))

    def fresh(self, limits: Limits) -> str:
        """Removes the work folder and makes it anew; /tmp is the host's."""
        self.leave()
        os.mkdir(self.work, 0o700)
        return self.work

    def leave(self) -> None:
        """Removes the work folder."""
        shutil.rmtree(self.work, ignore_errors=True)
