"""Seccomp filters: rules as data, assembled to classic BPF in pure Python.

Invariants: the first matching rule of a profile decides; a call that no rule names is allowed, unless it is newer than
`numbers.LAST` (x32 calls are above it, too): that one gets ENOSYS. A call in another architecture's table kills the
process. Arguments are compared by their low 32 bits: all that the kernel reads of the ones tested here, so bits set
above cannot smuggle a value past a test. A pointer, which is more, takes a rule for each half.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl_sandbox.kernel.numbers import LAST, numbers
from agentrl_sandbox.kernel.syscalls import PR_SET_NO_NEW_PRIVS, prctl

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _AND, _EQUAL, _GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


@dataclass(frozen=True)
class Argument:
    """Holds when `(argument & mask)` is one of `values`, or with `inside=False` when it is none of them."""

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    inside: bool = True
    upper: bool = False
    """Look at the high 32 bits in place of the low ones."""


@dataclass(frozen=True)
class Rule:
    """Calls that get `error` instead of an answer where all tests hold."""

    calls: tuple[str, ...]
    why: str
    error: int = errno.EPERM
    """0: the call does nothing and claims that it worked."""
    tests: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A named list of rules."""

    name: str
    rules: tuple[Rule, ...]

    def __add__(self, rules: tuple[Rule, ...]) -> "Profile":
        return Profile(self.name, self.rules + rules)


@dataclass(frozen=True)
class _Jump:
    """A conditional jump to labels; None is the next instruction."""

    code: int
    value: int
    yes: str | None = None
    no: str | None = None


_Instruction = _Jump | tuple[int, int] | str
"""A jump, (code, operand), or a label for what follows."""


def program(profile: Profile, machine: str | None = None) -> bytes:
    """The filter as an array of sock_filter, what `install` and bwrap --seccomp take."""
    machine = machine or platform.machine()
    table = numbers(machine)
    lines: list[_Instruction] = [(_LOAD, _ARCH), _Jump(_EQUAL, _AUDIT_ARCH[machine], "ours"), (_RETURN, _KILL), "ours"]
    lines += [(_LOAD, _NUMBER), _Jump(_GREATER, LAST, no="known"), (_RETURN, _ERRNO | errno.ENOSYS), "known"]
    for index, rule in enumerate(profile.rules):
        lines += _rule(rule, table, str(index))
    return _assemble([*lines, (_RETURN, _ALLOW)])


def _rule(rule: Rule, table: Mapping[str, int], name: str) -> list[_Instruction]:
    """A block that expects the call's number in the accumulator, and leaves it there when the rule does not match."""
    calls = [table[call] for call in rule.calls if call in table]
    if not calls:
        return []
    named, skip, following = f"{name} named", f"{name} skip", f"{name} following"
    lines: list[_Instruction] = [_Jump(_EQUAL, call, yes=named) for call in calls[:-1]]
    lines += [_Jump(_EQUAL, calls[-1], no=following), named]
    for position, test in enumerate(rule.tests):
        lines += _test(test, f"{name} holds {position}", skip)
    lines += [(_RETURN, _ERRNO | rule.error)]
    if rule.tests:
        lines += [skip, (_LOAD, _NUMBER)]
    return [*lines, following]


def _test(test: Argument, holds: str, skip: str) -> list[_Instruction]:
    lines: list[_Instruction] = [(_LOAD, _ARGUMENTS + 8 * test.index + 4 * test.upper), (_AND, test.mask)]
    hit, last = (holds, skip) if test.inside else (skip, holds)
    lines += [_Jump(_EQUAL, value, yes=hit) for value in test.values[:-1]]
    return [*lines, _Jump(_EQUAL, test.values[-1], hit, last), holds]


def _assemble(lines: list[_Instruction]) -> bytes:
    labels: dict[str, int] = {}
    instructions: list[_Jump | tuple[int, int]] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    return b"".join(_encode(line, position, labels) for position, line in enumerate(instructions))


def _encode(line: _Jump | tuple[int, int], position: int, labels: Mapping[str, int]) -> bytes:
    if isinstance(line, tuple):
        return struct.pack("=HBBI", line[0], 0, 0, line[1])
    yes, no = (0 if label is None else labels[label] - position - 1 for label in (line.yes, line.no))
    return struct.pack("=HBBI", line.code, yes, no, line.value)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Filter this thread's calls and its children's from now on; there is no way back. OSError when refused."""
    fprog = _FilterProgram(len(program) // 8, program)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(fprog))
