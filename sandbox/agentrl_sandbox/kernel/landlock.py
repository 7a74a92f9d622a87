"""Landlock, by ctypes: restricts the files, ports and processes that this process and its children may reach.

Invariants: everything that is not granted is denied, as far as the kernel's ABI knows it. `restrict` cannot be undone.
It does not hide the existence of files and does not prevent chmod by their owner: the seccomp profiles do that.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Sequence

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION, _PATH_BENEATH, _NO_AUDIT = 1, 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FILES_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND_AND_CONNECT_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result


def abi() -> int:
    """The kernel's Landlock version; 0 if it has none or denies access to it."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))
    except OSError:
        return 0


def restrict(read: Sequence[str], write: Sequence[str]) -> None:
    """Keep this thread and its children to these paths: all beneath them, or the one file.

    read: may be read and executed. write: everything but making devices. Paths that do not exist, or that this user
    cannot reach, are passed over. TCP (ABI 4), others' abstract sockets and signals (ABI 6) are denied whole. Raises
    OSError where the kernel refuses.
    """
    version = abi()
    handled = _FILES_OF_ABI[min(version, 5)] if version else 0
    ruleset = _ruleset(version, handled)
    try:
        for path in read:
            _grant(ruleset, path, handled & _READ)
        for path in write:
            _grant(ruleset, path, handled & ~_MAKE_DEVICES)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs refused")
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(_NO_AUDIT if version >= 7 else 0))
    finally:
        os.close(ruleset)


def _ruleset(version: int, handled: int) -> int:
    fields = [handled]
    if version >= 4:
        fields.append(_BIND_AND_CONNECT_TCP)
    if version >= 6:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return _call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))


def _grant(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # nothing there, or nothing that this user could reach anyway
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _FILE
        rule = struct.pack("=Qi", access, parent)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(parent)
