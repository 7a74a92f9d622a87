"""Makes a fork of the zygote look, and end, like an interpreter that started by itself."""

import _random
import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from agentrl_sandbox.zygote.fast_exit import FastExit

_OF_THE_INTERPRETER = ("sys", "builtins", "__main__")
Shared = dict[str, ModuleType]


def hide_sandbox(source: str) -> None:
    """In the zygote: remove what the user's program could see of the sandbox. `source`: the program's file."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("agentrl_sandbox", "sitecustomize")]:
        del sys.modules[name]
    sys.argv[:] = [source]
    sys.orig_argv[1:] = [source]
    with contextlib.suppress(ImportError):  # the host's own, as without the sandbox
        importlib.import_module("sitecustomize")


def forget_variables(names: Sequence[str]) -> None:
    """In the zygote: unset these variables, and blank them in the memory that /proc/PID/environ shows."""
    for name in names:
        os.environ.pop(name, None)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = (int(field) for field in file.read().rpartition(")")[2].split()[47:49])
    where = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.partition(b"=")[0].decode(errors="replace") in names:
            ctypes.memset(where, 0, len(entry))
        where += len(entry) + 1


def keep_modules() -> Shared:
    """In the zygote: its modules, which are never freed."""
    shared = {name: module for name, module in sys.modules.items() if name not in _OF_THE_INTERPRETER}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
    return shared


def fast_exit() -> FastExit | None:
    """In the zygote: the shorter exit of its forks; None if this interpreter does not allow it."""
    try:
        return FastExit()
    except (OSError, ValueError):
        return None


def become_ordinary(shared: Shared, fast_exit: FastExit | None) -> None:
    """In the user's process, before its program starts: undo what the fork shares."""
    gc.enable()
    # Frozen objects are never freed. The program gets a new module, whose objects are freed at exit.
    main = type(sys)("__main__")
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main
    # os.fork would have done this: new random seeds, and the thread's id.
    _random.Random.seed(sys.modules["random"]._inst)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    atexit.register(_exit, shared, fast_exit)  # the first to register is the last to run


def _exit(shared: Shared, fast_exit: FastExit | None) -> None:
    """Hide the shared modules from the interpreter's exit: destroying them would write to, and copy, their memory."""
    if fast_exit is not None:
        fast_exit.at_exit()
    for name in shared:
        if sys.modules.get(name) is shared[name]:
            del sys.modules[name]
