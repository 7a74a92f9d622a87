"""Makes this Python look like one on macOS: what only Linux has is gone. The packages built for Linux load before."""

import builtins
import ctypes
import io
import os
import resource
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

BUILT_FOR_LINUX = os.environ.get("BUILT_FOR_LINUX", "").split()

for package in ["asyncio", "multiprocessing", "subprocess", "urllib.request", *BUILT_FOR_LINUX]:
    with suppress(ImportError):
        import_module(package)
sysconfig.get_config_vars()  # read once, from a file that is named after the system

LINUX: dict[Any, str] = {
    os: """sched_getaffinity sched_setaffinity pidfd_open memfd_create unshare setns eventfd splice posix_fadvise
        posix_fallocate O_PATH getxattr setxattr listxattr removexattr fdatasync pipe2""",
    signal: "pidfd_send_signal SIGPWR SIGSTKFLT sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
    socket: "SO_PEERCRED AF_NETLINK SOCK_CLOEXEC AF_VSOCK",
}
SYMBOLS = {"prctl", "unshare", "setns", "mount", "umount2", "pivot_root", "malloc_trim", "inotify_init1"}
FOLDERS = ("/proc", "/sys/", "/dev/shm")


def without(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for which FOLDERS are not there."""

    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)

    return call


class Library(ctypes.CDLL):
    """A C library without what only Linux's has."""

    def __getattr__(self, name: str) -> Any:
        if name in SYMBOLS:
            raise AttributeError(f"dlsym: symbol not found: {name}")
        return super().__getattr__(name)


for module, names in LINUX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("listdir", "scandir", "stat", "lstat", "readlink", "open"):
    setattr(os, name, without(getattr(os, name)))
builtins.open = io.open = without(builtins.open)  # type: ignore[assignment]
ctypes.CDLL = Library  # type: ignore[misc]
sys.platform = "darwin"
