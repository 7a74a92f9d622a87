"""The loop of a zygote: it forks a job supervisor for each job and returns a pidfd of it.

It has one thread, a clean environment, and no data of any job in memory. It ends when the supervisor ends. The hash
seed is drawn when it starts, so programs print sets in one order until it ends.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys

from agentrl_sandbox import isolation, job_supervisor, wire
from agentrl_sandbox.command import BecomeUserProgram
from agentrl_sandbox.isolation import Host, Tier
from agentrl_sandbox.kernel.cgroup import Cgroup
from agentrl_sandbox.zygote import cell_runner, fork_setup
from agentrl_sandbox.zygote.path_patch import PathPatch

CONTROL = "AGENTRL_SANDBOX_CONTROL"
"""Environment variable with the supervisor's settings as JSON."""


def serve(path: str) -> None:
    """A path hook: called with the path of the user's program, it serves until the supervisor ends.

    It returns only in a user's process, which continues as an ordinary interpreter.
    """
    if path != sys.argv[0]:
        raise ImportError(path)
    sys.path_hooks.remove(serve)  # type: ignore[arg-type]  # a hook that finds nothing
    config = json.loads(os.environ[CONTROL])
    tier = isolation.load(config["tier"])
    for name in config["preload"]:
        with contextlib.suppress(ImportError):  # the program then reports it
            importlib.import_module(name)
    fork_setup.forget_variables((CONTROL, "PYTHONPATH"))
    fork_setup.hide_sandbox(config["source"])
    try:
        tier.prepare_zygote(Host(**config["host"]))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    patch = _find_path_patch(tier, config["host"]["folder"], path)
    fast_exit = fork_setup.fast_exit()
    gc.collect()
    gc.freeze()
    shared = fork_setup.keep_modules()
    with socket.socket(fileno=config["handle"]) as control:
        about = json.dumps({"forks": tier.forks_python}).encode()
        socket.send_fds(control, [about], [os.pidfd_open(os.getpid())])
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # job supervisors need no reaping
        try:
            _loop(tier, control)
        except BecomeUserProgram as become:
            control.detach()
            pipes = become.args
    if patch is not None and tier.slot_folder is not None:
        patch.apply(tier.slot_folder, tier.variables(tier.slot_folder))
    fork_setup.become_ordinary(shared, fast_exit)
    if pipes:
        cell_runner.main(*pipes)
        os._exit(0)


def _find_path_patch(tier: Tier, folder: str, file: str) -> PathPatch | None:
    """The patch that gives a fork the path of its own slot. If there is none, the tier does not fork interpreters."""
    first = tier.first_slot_folder(folder)
    if first is None or not tier.forks_python:
        return None
    try:
        return PathPatch(first, file)
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
            _become_job_supervisor(tier, order["slot"], *handles)
        socket.send_fds(control, [json.dumps({"id": order["id"]}).encode()], [pidfd])
        for handle in (pidfd, *handles):
            os.close(handle)


def _become_job_supervisor(tier: Tier, slot: int, connection: int, *cgroup: int) -> None:
    """Never returns. In the user's process it raises BecomeUserProgram."""
    gc.disable()
    tier.cgroup = Cgroup(cgroup) if cgroup else None
    try:
        job_supervisor.serve(tier, slot, connection)
    except wire.Closed:
        pass
    except BecomeUserProgram:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(0)
