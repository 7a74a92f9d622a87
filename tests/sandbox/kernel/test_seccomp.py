"""The filters, asked by real processes that live under them."""

import errno
import os
import struct
import subprocess
import sys
import textwrap

import pytest

from agentrl_sandbox.kernel import profiles
from agentrl_sandbox.kernel.numbers import numbers
from agentrl_sandbox.kernel.seccomp import Argument, Profile, Rule, program

pytestmark = pytest.mark.integration

TABLE = numbers("x86_64")


def evaluate(code: bytes, number: int, arguments: tuple[int, ...] = (), arch: int = 0xC000003E) -> int:
    """A classic-BPF machine, written from the kernel's description of it."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(*arguments, *(0,) * (6 - len(arguments))))
    lines = list(struct.iter_unpack("=HBBI", code))
    register, position = 0, 0
    while True:
        operation, yes, no, value = lines[position]
        position += 1
        match operation:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, value)
            case 0x54:
                register &= value
            case 0x15:
                position += yes if register == value else no
            case 0x25:
                position += yes if register > value else no
            case 0x06:
                return value
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x50000


def refused(code: int) -> int:
    return ERRNO | code


@pytest.mark.parametrize("profile", [profiles.NAMESPACE, profiles.LANDLOCK])
@pytest.mark.parametrize(("machine", "arch"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_every_rule_of_both_architectures(profile: Profile, machine: str, arch: int) -> None:
    code, table = program(profile, machine), numbers(machine)
    for rule in (rule for rule in profile.rules if not rule.tests):
        for call in (table[name] for name in rule.calls if name in table):
            assert evaluate(code, call, arch=arch) == refused(rule.error), rule
    assert evaluate(code, table["getpid"], arch=arch) == ALLOW
    assert evaluate(code, table["getpid"], arch=0x40000003) == KILL  # 32-bit x86
    assert evaluate(code, 0x40000000 + table["getpid"], arch=arch) == refused(errno.ENOSYS)  # x32
    assert evaluate(code, 463, arch=arch) == refused(errno.ENOSYS)
    assert evaluate(code, -1, arch=arch) == refused(errno.ENOSYS)


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("clone", (0x11,), ALLOW),
        ("clone", (0x10000011,), refused(errno.EPERM)),
        ("clone", (0xFFFFFFFF00020000,), refused(errno.EPERM)),
        ("clone", (0xFFFFFFFF00000011,), ALLOW),
        ("socket", (1, 1), ALLOW),
        ("socket", (2, 1), ALLOW),
        ("socket", (40, 1), refused(errno.EAFNOSUPPORT)),  # AF_VSOCK
        ("socket", (1 << 32 | 17, 3), refused(errno.EAFNOSUPPORT)),  # the kernel sees AF_PACKET
        ("socket", (16, 3, 0), ALLOW),
        ("socket", (16, 3, 12), refused(errno.EPROTONOSUPPORT)),  # NETLINK_NETFILTER
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), refused(errno.EPERM)),
        ("ioctl", (0, 1 << 32 | 0x5412), refused(errno.EPERM)),  # CVE-2019-10063
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0x40000,), refused(errno.EPERM)),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), refused(errno.EPERM)),
        ("sched_setaffinity", (0,), ALLOW),
        ("sched_setscheduler", (1,), refused(errno.EPERM)),
        ("setpriority", (2, 0), refused(errno.EPERM)),
        ("prctl", (15,), ALLOW),
        ("prctl", (22,), refused(errno.EINVAL)),
        ("setrlimit", (4,), 0x50000),
        ("setrlimit", (7,), ALLOW),
        ("prlimit64", (0, 4, 0, 1), ALLOW),
        ("prlimit64", (0, 4, 1, 0), 0x50000),
        ("prlimit64", (0, 4, 1 << 32, 0), 0x50000),  # an address whose low half is zero
        ("prlimit64", (0, 7, 1, 0), ALLOW),
        ("fcntl", (0, 1024), refused(errno.EPERM)),  # F_SETLEASE
        ("fcntl", (0, 1025), ALLOW),
        ("fcntl", (0, 1026), refused(errno.EPERM)),  # F_NOTIFY
        ("fcntl", (0, 1031), refused(errno.EPERM)),  # F_SETPIPE_SZ
        ("fcntl", (0, 6), ALLOW),
        ("setsockopt", (0, 1, 7), 0x50000),  # SO_SNDBUF
        ("setsockopt", (0, 1, 33), 0x50000),  # SO_RCVBUFFORCE
        ("setsockopt", (0, 1, 2), ALLOW),
        ("setsockopt", (0, 6, 8), ALLOW),  # of TCP
    ],
)
def test_arguments_in_the_namespace_profile(call: str, arguments: tuple[int, ...], answer: int) -> None:
    assert evaluate(program(profiles.NAMESPACE, "x86_64"), TABLE[call], arguments) == answer


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("socket", (1, 0x80801), ALLOW),
        ("socket", (1, 2), refused(errno.EAFNOSUPPORT)),
        ("socket", (2, 1), refused(errno.EAFNOSUPPORT)),
        ("connect", (), refused(errno.EACCES)),
        ("socketpair", (1, 0x80801), ALLOW),
        ("socketpair", (1, 2), refused(errno.EAFNOSUPPORT)),
        ("setpriority", (0, 0), ALLOW),
        ("setpriority", (0, 5), refused(errno.EPERM)),
        ("setpriority", (2, 0), refused(errno.EPERM)),
        ("chmod", (), 0x50000),
        ("kill", (), refused(errno.EPERM)),
    ],
)
def test_arguments_in_the_landlock_profile(call: str, arguments: tuple[int, ...], answer: int) -> None:
    profile = profiles.LANDLOCK + profiles.SHARED_USER + profiles.NO_SIGNALS
    assert evaluate(program(profile, "x86_64"), TABLE[call], arguments) == answer


def test_all_arguments_must_hold_and_the_first_rule_decides() -> None:
    both = Rule(("socket",), "", 1, (Argument(0, (1, 2)), Argument(1, (3,), inside=False)))
    code = program(Profile("", (both, Rule(("socket",), "", 2, (Argument(2, (9,)),)))), "x86_64")
    assert evaluate(code, TABLE["socket"], (2, 4, 9)) == refused(1)
    assert evaluate(code, TABLE["socket"], (2, 3, 9)) == refused(2)
    assert evaluate(code, TABLE["socket"], (2, 3, 8)) == ALLOW


def test_numbers_are_the_kernels() -> None:
    header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
    if not os.path.exists(header):
        pytest.skip("the kernel's headers for x86_64 are not installed")
    with open(header) as file:
        real = {words[1][5:]: int(words[2]) for line in file if len(words := line.split()) == 3 and "__NR_" in line}
    newer = {"fchmodat2", "statmount", "listmount", "mseal"}
    assert {name: value for name, value in TABLE.items() if name not in newer and real.get(name) != value} == {}


@pytest.mark.parametrize("profile", ["NAMESPACE", "LANDLOCK"])
def test_ordinary_programs_run_under_the_profile(profile: str) -> None:
    script = f"""
        import ctypes, errno, os, subprocess, sys, threading
        from agentrl_sandbox.kernel import profiles, seccomp
        seccomp.install(seccomp.program(profiles.{profile}))
        libc = ctypes.CDLL(None, use_errno=True)
        def denied(call, *arguments):
            return call(*arguments) == -1 and errno.errorcode[ctypes.get_errno()]
        print(denied(libc.unshare, 0x10000000), denied(libc.memfd_create, b"x", 0), denied(libc.ptrace, 0, 0, 0, 0))
        thread = threading.Thread(target=print, args=("a thread",)); thread.start(); thread.join()
        print(subprocess.run(["/bin/echo", "a child"], capture_output=True).stdout)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("EPERM ENOSYS EPERM\na thread\nb'a child\\n'\n", "")
