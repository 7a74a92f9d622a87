"""No isolation: a work folder of its own and limits on each process, nothing else. For code one would run anyway."""

import os
import shutil

from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits


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

    def others(self) -> int:
        """All that this user runs."""
        return tasks_of(os.getuid())

    def leave(self) -> None:
        """Removes the work folder."""
        shutil.rmtree(self.work, ignore_errors=True)


def tasks_of(uid: int) -> int:
    """How many processes and threads of a user there are."""
    return sum(_tasks(name, uid) for name in os.listdir("/proc") if name.isdigit())


def _tasks(pid: str, owner: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == owner else 0
    except OSError:
        return 0
