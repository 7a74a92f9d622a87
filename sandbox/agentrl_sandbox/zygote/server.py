"""The loop of a server: told of a job, it forks a warden, hands back a handle on it, and waits for the next.

One thread, a clean environment, nothing of any job in its memory. It ends when the supervisor does. The seed of
hashes is drawn when it starts, so programs that print sets do so in one order as long as it lives.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys

from agentrl_sandbox import isolation, warden, wire
from agentrl_sandbox.command import Become
from agentrl_sandbox.isolation import Host, Tier
from agentrl_sandbox.kernel.group import Group
from agentrl_sandbox.zygote import cells, ordinary
from agentrl_sandbox.zygote.place import Place

CONTROL = "AGENTRL_SANDBOX_CONTROL"
"""Environment variable with what the supervisor tells: JSON."""


def serve(path: str) -> None:
    """As a path hook: asked about the user's program it serves, until the supervisor is gone.

    It returns only in a user's process, which then is an ordinary interpreter; None says that there is nothing to
    import from.
    """
    if path != sys.argv[0]:
        raise ImportError(path)
    sys.path_hooks.remove(serve)  # type: ignore[arg-type]  # a hook that finds nothing
    told = json.loads(os.environ[CONTROL])
    tier = isolation.load(told["tier"])
    for name in told["preload"]:
        with contextlib.suppress(ImportError):  # then the program is to find out
            importlib.import_module(name)
    ordinary.forget_variables((CONTROL, "PYTHONPATH"))
    ordinary.look(told["source"])
    try:
        tier.settle(Host(**told["host"]))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    place = _find_place(tier, told["host"]["folder"], path)
    ending = ordinary.ending()
    gc.collect()
    gc.freeze()
    shared = ordinary.share()
    with socket.socket(fileno=told["handle"]) as control:
        about = json.dumps({"forks": tier.forks_python}).encode()
        socket.send_fds(control, [about], [os.pidfd_open(os.getpid())])
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens need no reaping
        try:
            _loop(tier, control)
        except Become as become:
            control.detach()
            pipes = become.args
    if place is not None and tier.place is not None:
        place.move(tier.place, tier.variables(tier.place))
    ordinary.become(shared, ending)
    if pipes:
        cells.main(*pipes)
        os._exit(0)


def _find_place(tier: Tier, folder: str, file: str) -> Place | None:
    """What a fork has to change of the path that this interpreter was started with; if that cannot be, none is made."""
    first = tier.first_place(folder)
    if first is None or not tier.forks_python:
        return None
    try:
        return Place(first, file)
    except OSError:
        tier.forks_python = False
        return None


def _loop(tier: Tier, control: socket.socket) -> None:
    while True:
        text, handles, _, _ = socket.recv_fds(control, 4096, 8)
        if not text:
            os._exit(0)
        order = json.loads(text)
        pid, pidfd = tier.clone()
        if pid == 0:
            _become_warden(tier, order["slot"], *handles)
        socket.send_fds(control, [json.dumps({"id": order["id"]}).encode()], [pidfd])
        for handle in (pidfd, *handles):
            os.close(handle)


def _become_warden(tier: Tier, slot: int, caller: int, *group: int) -> None:
    """Never returns; in the user's process Become comes out of it."""
    gc.disable()
    tier.group = Group(group) if group else None
    try:
        warden.serve(tier, slot, caller)
    except wire.Closed:
        pass
    except Become:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(0)
