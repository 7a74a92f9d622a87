"""How a fork of the warm interpreter is made to look, and to end, like one that started by itself."""

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

from agentrl_sandbox.zygote.ending import Ending

_OF_THE_INTERPRETER = ("sys", "builtins", "__main__")
Shared = dict[str, ModuleType]


def look(source: str) -> None:
    """In the server: what would tell the user's program of us is taken away. `source` is its file, beside it."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("agentrl_sandbox", "sitecustomize")]:
        del sys.modules[name]
    sys.argv[:] = [source]
    sys.orig_argv[1:] = [source]
    with contextlib.suppress(ImportError):  # the host's own, as without us
        importlib.import_module("sitecustomize")


def forget_variables(names: Sequence[str]) -> None:
    """In the server: unset these, and blank them where the kernel shows what a process was started with."""
    for name in names:
        os.environ.pop(name, None)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = (int(field) for field in file.read().rpartition(")")[2].split()[47:49])
    where = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.partition(b"=")[0].decode(errors="replace") in names:
            ctypes.memset(where, 0, len(entry))
        where += len(entry) + 1


def share() -> Shared:
    """In the server: the modules that it has, never to be freed."""
    shared = {name: module for name, module in sys.modules.items() if name not in _OF_THE_INTERPRETER}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
    return shared


def ending() -> Ending | None:
    """In the server: how the end of its forks is cut short, where this interpreter allows for it."""
    try:
        return Ending()
    except (OSError, ValueError):
        return None


def become(shared: Shared, ending: Ending | None) -> None:
    """In the user's process, before its program starts."""
    gc.enable()
    # What was frozen is never freed. The program gets a module that was made later: its objects are freed at exit.
    main = type(sys)("__main__")
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main
    # What os.fork would have seen to: numbers that differ from run to run, and the thread's name in the kernel.
    _random.Random.seed(sys.modules["random"]._inst)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    atexit.register(_spare, shared, ending)  # the first to register is the last to run


def _spare(shared: Shared, ending: Ending | None) -> None:
    """Hide from the interpreter's end what all runs share: taking it apart writes to, and so copies, all its memory."""
    if ending is not None:
        ending.leave()
    for name in shared:
        if sys.modules.get(name) is shared[name]:
            del sys.modules[name]
