"""System calls as functions that raise OSError.

The library is loaded with PyDLL, which keeps the interpreter's lock during a call: after `clone` the child has one
thread and owns the lock, as after a fork.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Mapping

CLONE_PIDFD = 0x1000
CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

# Numbers of the calls that have no wrapper in every libc; those above 400 are alike on all machines.
_NUMBERS: Mapping[str, tuple[int, int, int]] = {
    "x86_64": (56, 155, 217),
    "aarch64": (220, 41, 61),
}
_PIDFD_SEND_SIGNAL, _CLOSE_RANGE, _OPENAT2, _MOUNT_SETATTR = 424, 436, 437, 442
_SIGCHLD = 17
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_CLONE, _PIVOT_ROOT, _GETDENTS = _NUMBERS.get(platform.machine(), (-1, -1, -1))


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _checked(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {what}")


def clone(flags: int) -> tuple[int, int]:
    """fork() with CLONE_NEW* `flags`: (pid, pidfd) in the parent, (0, -1) in the child. Needs a single thread."""
    if _CLONE < 0:
        raise OSError(errno.ENOSYS, f"no number of clone known for {platform.machine()}")
    pidfd = ctypes.c_int(-1)
    zero = ctypes.c_long(0)
    pid = _call(_CLONE, ctypes.c_long(flags | CLONE_PIDFD | _SIGCHLD), zero, ctypes.byref(pidfd), zero, zero)
    return pid, pidfd.value if pid else -1


def fork() -> int:
    """fork(2) without the handlers that Python and its modules run after it. The process must have one thread."""
    pid: int = _libc.fork()
    _checked(pid, "fork")
    return pid


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(result, f"mount {kind or source} on {target}")


def unmount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _checked(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _call(_PIVOT_ROOT, new.encode(), old.encode())


def mount_attributes(path: str, add: int, *, recursive: bool) -> None:
    """mount_setattr(2): adds MOUNT_ATTR_* flags to the mount at `path`, and to those beneath it."""
    attributes = (ctypes.c_uint64 * 4)(add, 0, 0, 0)
    flags = 0x8000 if recursive else 0
    _call(_MOUNT_SETATTR, ctypes.c_int(-100), path.encode(), flags, ctypes.byref(attributes), ctypes.c_size_t(32))


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """prctl(2)."""
    result = _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(result, f"prctl {option}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _checked(_libc.unshare(flags), "unshare")


def set_capabilities(effective: int, permitted: int) -> None:
    """capset(2) on this process; the inheritable set is emptied."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low, high = 0xFFFFFFFF, 32
    words = (effective & low, permitted & low, 0, effective >> high, permitted >> high, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(*words))), "capset")


def close_above(first: int) -> None:
    """Close every file descriptor from `first` up."""
    _call(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0)


def open_beneath(folder: int, path: str, flags: int, mode: int = 0, *, links: bool = False) -> int:
    """openat2(2) that cannot leave `folder`; symbolic links fail unless `links`, which follows those that stay."""
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | (0 if links else _RESOLVE_NO_SYMLINKS)
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path with a NUL")
    return _call(_OPENAT2, ctypes.c_int(folder), name, ctypes.byref(how), ctypes.c_size_t(24))


def read_entries(folder: int, room: memoryview) -> int:
    """getdents64(2): puts the next entries of an open folder into `room`, and nowhere else; bytes, 0 after the last."""
    first = ctypes.c_char.from_buffer(room)
    return _call(_GETDENTS, ctypes.c_int(folder), ctypes.byref(first), ctypes.c_size_t(len(room)))


def set_filesystem_ids(uid: int, gid: int) -> None:
    """setfsgid(2), setfsuid(2): the user and group for access to files."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
