"""No isolation: a work folder per slot and limits on each process, nothing else. For code that you trust."""

import os
import shutil

from agentrl_sandbox.isolation import Tier
from agentrl_sandbox.job import Limits


class Unisolated(Tier):
    """Runs programs with the rights of the sandbox."""

    name = "none"

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """Use a folder per slot."""
        super().enter_slot(slot, limits)
        self.work = os.path.join(self.host.folder, str(slot))

    def new_work_folder(self, limits: Limits) -> str:
        """Replace the work folder; /tmp is the host's."""
        self.clean_up()
        os.mkdir(self.work, 0o700)
        return self.work

    def other_processes(self) -> int:
        """All tasks of this user."""
        return count_tasks(os.getuid())

    def clean_up(self) -> None:
        """Remove the work folder."""
        shutil.rmtree(self.work, ignore_errors=True)


def count_tasks(uid: int) -> int:
    """Number of processes and threads of a user."""
    return sum(_tasks(name, uid) for name in os.listdir("/proc") if name.isdigit())


def _tasks(pid: str, owner: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == owner else 0
    except OSError:
        return 0
