"""Turns a job into a plan for a job supervisor, and its replies into results. Starts no processes."""

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_sandbox import wire
from agentrl_sandbox.job import CommandResult, Job, Limits
from agentrl_sandbox.languages import HEAP, Recipe
from agentrl_sandbox.work_folder import checked

_NUMPY = re.compile(r"^.*\b(?:import|from)\b[^#\n]*\b(?:numpy|pandas|scipy|sklearn|matplotlib)\b", re.MULTILINE)
_MIB = 1 << 20
_AT_ONCE = 1 << 16
THREADS = {
    # Numeric libraries start a thread per core of the host when they are imported, each with a stack, which can exceed
    # the memory of a run. One thread: there are two runs per core, no thread survives the fork of a zygote, and
    # OpenBLAS waits forever for its threads when it is forked again.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"),
    **dict.fromkeys(("NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    # Schedulers and compilers; two, so that concurrent programs stay concurrent.
    **dict.fromkeys(("GOMAXPROCS", "RAYON_NUM_THREADS", "TBB_NUM_THREADS", "UV_THREADPOOL_SIZE"), "2"),
}
"""Variables that keep libraries from starting a thread per core."""
_HEAP = 0.75
"""Share of a run's memory for the heap of a runtime; the rest is for the runtime itself."""
_WARM = frozenset({*sys.stdlib_module_names, "numpy", "usercustomize"})
Files = dict[str, tuple[bytes, int]]


@dataclass
class Plan:
    """The message to a job supervisor, and the flavour of the zygote that forks it."""

    header: dict[str, Any]
    files: Files
    flavour: str
    key: bytes | None
    """Key of the compilation; None if nothing is compiled."""

    def message(self, stdins: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """The bytes to send first, and the stdins to send after them: none, if all together are few bytes."""
        names = [(path, mode) for path, (_, mode) in self.files.items()]
        plan = wire.pack({**self.header, "files": names}, [content for content, _ in self.files.values()])
        if len(plan) + sum(map(len, stdins)) > _AT_ONCE:
            return plan, stdins
        return b"".join([plan, *(wire.pack({}, [stdin]) for stdin in stdins)]), ()


def environment(folders: tuple[str, ...], work: str) -> dict[str, str]:
    """All environment variables of a run; `folders` come first in PATH."""
    path = ":".join(dict.fromkeys([*folders, "/usr/local/bin", "/usr/bin", "/bin"]))
    return {"PATH": path, "HOME": work, "LANG": "C.UTF-8", **THREADS}


def make(job: Job, recipe: Recipe, programs: Mapping[str, str], *, forks: bool, env: Mapping[str, str]) -> Plan:
    """The plan of a job. Raises ValueError for a path that leaves the work folder."""
    code = recipe.prepare(job.code)
    files: Files = {checked(path): (content, 0o644) for path, content in job.files.items()}
    files[recipe.source] = (code.encode(errors="surrogateescape"), 0o644)
    compile_ = recipe.compile_command(code)
    command = None if compile_ is None else _located(compile_, programs, job.compile_limits)
    in_fork = forks and recipe.zygote and not _shadows(files)
    header = {
        "argv": None if in_fork else _located(recipe.run, programs, job.run_limits),
        "env": {**env, **recipe.env},
        "compile": command,
        "compile_limits": vars(job.compile_limits),
        "run_limits": vars(job.run_limits),
        "fetch": list(job.fetch),
        "stop": job.stop_on_failure,
        "total": job.total,
        "tests": len(job.stdins),
        "session": False,
        "plain": in_fork and not job.files and not job.fetch,
    }
    flavour = "numpy" if in_fork and _NUMPY.search(code) else "base"
    return Plan(header, files, flavour, None if command is None else _key(command, files, header))


def session(limits: Limits, argv: list[str] | None, env: Mapping[str, str]) -> Plan:
    """The plan of a session; `argv` starts its interpreter if none is forked."""
    header = {"session": True, "plain": False, "argv": argv, "env": {**env}, "run_limits": vars(limits)}
    return Plan(header, {}, "base", None)


def _shadows(files: Files) -> bool:
    """Whether a file would be imported in place of a module that the zygote has imported already."""
    return any(path.split("/")[0].removesuffix(".py") in _WARM for path in files)


def result(header: Mapping[str, Any], stdout: bytes, stderr: bytes) -> CommandResult:
    """The result in a job supervisor's reply about one command."""
    late = header["hit"] in ("time", "cpu")
    error = header["error"]
    return CommandResult(
        status="Error" if error else "TimeLimitExceeded" if late else "Finished",
        execution_time=header["seconds"],
        return_code=header["code"] if not error else None,
        stdout=stdout,
        stderr=error.encode() if error else stderr,
        cpu_time=header["cpu"],
        memory_peak_mb=header["memory"] / _MIB,
        limit_hit=header["hit"],
        truncated=header["truncated"],
    )


def _located(command: tuple[str, ...], programs: Mapping[str, str], limits: Limits) -> list[str]:
    heap = str(int(limits.memory_mb * _HEAP))
    return [programs.get(command[0], command[0]), *(word.replace(HEAP, heap) for word in command[1:])]


def _key(command: list[str], files: Files, header: Mapping[str, Any]) -> bytes:
    hashed = hashlib.sha256(repr((command, sorted(header["env"].items()), header["compile_limits"])).encode())
    for path, (content, mode) in sorted(files.items()):
        hashed.update(repr((os.fsencode(path), mode, len(content))).encode())
        hashed.update(content)
    return hashed.digest()
