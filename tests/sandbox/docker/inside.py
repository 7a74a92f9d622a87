"""In the container, beside the server and as its user: the scene of the attacks, its state told for each line read."""

import json
import os
import sys
from pathlib import Path

from tests.sandbox.attacks.scene import Scene


def processes() -> dict[int, str]:
    """Pid -> command line, of all but this one."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != os.getpid():
                found[int(name)] = (
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return found


def is_job_supervisor(pid: int) -> bool:
    """Whether it is the first process of a pid namespace two below: it stays for further jobs, its programs end."""
    try:
        status = Path("/proc", str(pid), "status").read_text(errors="replace")
    except OSError:
        return False
    ids = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return len(ids) == 3 and ids[-1] == "1"


def pid_of(words: str) -> str:
    """The process that was started with `words`."""
    return str(next(pid for pid, line in processes().items() if words in line and "docker-init" not in line))


def main() -> None:
    """First the scene, then its damage whenever asked."""
    scene = Scene()
    values = {**scene.values, "POOL": pid_of("sandbox serve"), "SUPERVISOR": pid_of("supervisor import main")}
    print(json.dumps({"secret": scene.secret, "values": values}), flush=True)
    for _ in sys.stdin:
        count = sum(not is_job_supervisor(pid) for pid in processes())
        print(json.dumps({"damage": scene.damage(), "processes": count}), flush=True)
    scene.close()


if __name__ == "__main__":
    main()
