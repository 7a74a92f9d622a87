"""Builds the file system of runs: a few folders of the host, read-only, on an empty root."""

import os
import stat
from collections.abc import Iterable, Sequence

from agentrl_sandbox.kernel.syscalls import mount, mount_attributes, pivot_root, unmount

NOSUID, NODEV, NOEXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 32, 4096, 16384, 1 << 18
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_DETACH = 2

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ssl/openssl.cnf", "localtime"),
    *("mime.types", "R", "php", "perl", "lua", "gai.conf", "protocols", "services", "java", "fonts"),
)
DEVICES = ("null", "zero", "full", "random", "urandom")


def sources(roots: Iterable[str]) -> list[str]:
    """Paths of the host that a run may read, parents first; of nested ones only the outer."""
    etc = [f"/etc/{name}" for name in (*ETC, *_java_settings())]
    found = sorted({*SYSTEM, *etc, *(os.path.normpath(root) for root in roots)})
    kept: list[str] = []
    for path in found:
        folders = (outer for outer in kept if not os.path.islink(outer))
        if os.path.exists(path) and not any(path.startswith(outer + "/") for outer in folders):
            kept.append(path)
    return kept


def _java_settings() -> list[str]:
    return [name for name in os.listdir("/etc") if name.startswith("java-")] if os.path.isdir("/etc") else []


def open_all(paths: Sequence[str]) -> dict[str, int]:
    """A descriptor for each path, opened while this process may still reach it. Symbolic links are skipped."""
    flags = os.O_PATH | os.O_CLOEXEC
    return {path: os.open(path, flags) for path in paths if not os.path.islink(path)}


def build_root(base: str, paths: Sequence[str], handles: dict[str, int], files: dict[str, str]) -> None:
    """Assemble a root on `base`: copy links, bind folders and files read-only, write `files`."""
    mount("tmpfs", base, "tmpfs", NOSUID | NODEV, "mode=755,size=4m,nr_inodes=2k")
    for path in paths:
        if os.path.islink(path):
            os.makedirs(base + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), base + path)
    for path, handle in handles.items():
        bind_read_only(handle, base + path)
    for path, text in files.items():
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        with open(base + path, "w", encoding="utf-8") as file:
            file.write(text)


def bind_read_only(handle: int, target: str) -> None:
    """`bind` for files that runs may read and execute."""
    bind(handle, target, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)


def bind(handle: int, target: str, attributes: int) -> None:
    """Create `target` and bind the file of `handle` there."""
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(f"/proc/self/fd/{handle}", target, "", BIND | RECURSIVE)
    mount_attributes(target, attributes, recursive=True)


def make_devices(base: str, handles: dict[str, int]) -> None:
    """Create /dev with harmless devices and the links that programs expect."""
    os.makedirs(base + "/dev/shm")
    for path, handle in handles.items():
        bind(handle, base + path, _ATTR_NOSUID)
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        os.symlink("/proc/self/fd" + target, f"{base}/dev/{name}")


def enter_root(base: str) -> None:
    """Make `base` the root, read-only, and unmount the old one."""
    os.chdir(base)
    pivot_root(".", ".")
    unmount(".", _DETACH)
    os.chdir("/")
    mount_attributes("/", _ATTR_RDONLY | _ATTR_NOSUID, recursive=False)


def detach(target: str) -> None:
    """Unmount at once, even if it is in use."""
    unmount(target, _DETACH)
