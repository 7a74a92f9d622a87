"""What an attack is: a hostile program, and how its result shows that it was contained.

Everywhere: the secret of the scene is in no output, nothing outside was touched, and the sandbox answers with a result,
never with trouble of its own (that would take a bad sample out of the training). A program says ESCAPED when something
worked that must not. What is special to one attack is in `checks`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentrl_sandbox.job import CommandResult, Job, Limits, Result
from agentrl_sandbox.kernel.numbers import number

Check = Callable[[Result], str]
"""What is wrong with a result; empty if nothing."""

SMALL = Limits(wall=4.0, memory_mb=256, output_bytes=1 << 18, processes=64, disk_mb=16, inodes=1000, open_files=128)
COMPILER = Limits(wall=20.0, memory_mb=1024, disk_mb=32)

PRELUDE = """\
import os, sys

def tell(what):
    print("ESCAPED", what, flush=True)

def must_fail(what, act, *arguments, **options):
    try:
        got = act(*arguments, **options)
    except BaseException:
        return
    tell(f"{what}: {got!r:.200}")

def show(path):
    try:
        with open(path, "rb") as file:
            print(path, file.read(1 << 16), flush=True)
    except OSError:
        pass

def pids():
    try:
        found = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        found = set()
    # bwrap's first process belongs to the run: its memory and environment are the run's own.
    own = {os.getpid(), 1} if "@TIER@" == "bwrap" else {os.getpid()}
    return (found | {@POOL@, @DECOY@, os.getppid(), 1}) - own

def syscall(number, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

"""


@dataclass(frozen=True)
class Attack:
    """One hostile program. @NAME@ in its code becomes the scene's value, @nr:name@ a system call's number."""

    family: str
    name: str
    code: str
    language: str = "python"
    checks: Sequence[Check] = ()
    limits: Limits = SMALL
    compile_limits: Limits = COMPILER
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    stdins: Sequence[bytes] = (b"",)
    prelude: bool = True
    slow: bool = False

    def job(self, values: Mapping[str, str]) -> Job:
        """As it is run in a scene."""
        code = (PRELUDE if self.prelude and self.language == "python" else "") + self.code
        for name, value in values.items():
            code = code.replace(f"@{name}@", value)
        code = re.sub(r"@nr:(\w+)@", lambda match: str(number(match[1])), code)
        return Job(
            self.language,
            code,
            self.stdins,
            self.files,
            [path.replace("@SECRET@", values["SECRET"]) for path in self.fetch],
            self.compile_limits,
            self.limits,
        )


Slow = partial(Attack, slow=True)
"""One that takes seconds: tried with the marker `slow`."""


def last(result: Result) -> CommandResult:
    """The command that the attack is about."""
    command = result.runs[-1] if result.runs else result.compiled
    assert command is not None
    return command


def hits(*limits: str) -> Check:
    """It ran into one of these limits."""

    def check(result: Result) -> str:
        command = last(result)
        good = command.limit_hit in limits
        return "" if good else f"limit_hit={command.limit_hit}, return_code={command.return_code}"

    return check


def fails(result: Result) -> str:
    """It did not end well."""
    command = last(result)
    return "" if command.return_code != 0 or command.status != "Finished" else "it ended as if nothing were wrong"


def prints(text: str) -> Check:
    """It got to its end, and says so."""
    return lambda result: (
        ""
        if text.encode() in last(result).stdout
        else f"it said {last(result).stdout[-200:]!r}, {last(result).stderr[-300:]!r}"
    )


def returns(code: int) -> Check:
    """Its own return code is what is reported."""
    return lambda result: "" if last(result).return_code == code else f"return code {last(result).return_code}"


def takes(seconds: float) -> Check:
    """It is over by then."""
    return lambda result: (
        "" if last(result).execution_time < seconds else f"it took {last(result).execution_time:.1f} s"
    )


def uses(megabytes: float) -> Check:
    """Its peak is below that."""
    return lambda result: (
        "" if last(result).memory_peak_mb < megabytes else f"it had {last(result).memory_peak_mb:.0f} MiB"
    )


def cut(result: Result) -> str:
    """Its output was cut off, and says so."""
    command = last(result)
    good = command.truncated and max(len(command.stdout), len(command.stderr)) <= SMALL.output_bytes
    return "" if good else f"truncated={command.truncated}, {len(command.stdout)} + {len(command.stderr)} bytes"


def fetched_nothing(result: Result) -> str:
    """No file came back."""
    return f"it gave {sorted(result.files)}" if result.files else ""
