"""Runs a shell script by bash in the code sandbox, where Python and its launchers only note their words.

Invariants: the script sees copies of itself and of the scripts and YAML files that it names, no other file of this
machine, no network, and only the environment variables that its text names.
"""

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_verl.reading.launches import mark

if TYPE_CHECKING:
    from agentrl_sandbox.job import CommandResult, Job, Result

SECONDS = 20.0
NOTED = (
    *("python", "python3", "torchrun", "ray", "pip", "pip3", "uv", "conda", "git", "wget", "curl", "hf", "modelscope"),
    *("huggingface-cli", "nvidia-smi", "npu-smi", "sleep", "srun", "scontrol", "sbatch", "docker", "apt", "apt-get"),
    *("ssh", "kill", "pkill", "ps", "nsys", "accelerate", "deepspeed", "hostname", "sudo"),
)
"""Commands that only note their words."""
STUB = """#!/bin/bash
printf '%s\\0' "$PWD" "${0##*/}" "$@" $'\\n' >> "$AGENTRL_LOG"
[[ "$*" =~ ^-c\\ *import\\ ([a-zA-Z0-9_]+)$ && " $AGENTRL_MISSING " == *" ${BASH_REMATCH[1]} "* ]] && exit 1
printf '%s' "$AGENTRL_UNKNOWN"
"""
SETUP = """ulimit() { :; }
cd() { builtin cd "$@" 2> /dev/null || true; }
source() { [ ! -f "$1" ] || builtin source "$@"; }
for name in mkdir rmdir rm cp mv ln touch chmod tee; do
    eval "$name() { command $name \"\\$@\" 2> /dev/null || true; }"
done
command_not_found_handle() {
    [ "$1" != "$AGENTRL_UNKNOWN" ] || return 0
    printf '%s\\0' "$PWD" "$@" $'\\n' >> "$AGENTRL_LOG"
    return 127
}
"""
"""What differs from a plain bash: a folder or a file of the run's machine that is not here ends no script."""
RUN = """mkdir bin; (cd bin; tee {names} < ../stub > /dev/null; chmod +x *)
printf '#!/bin/bash\\nexec bash "$@"\\n' > bin/sh; chmod +x bin/sh
export AGENTRL_LOG="$PWD/log" BASH_ENV="$PWD/setup" PATH="$PWD/bin:$PATH" {variables}
mkdir -p "$PWD/tree"{folder}; tree=$PWD/tree; printf '%s\\0' "$tree" $'\\n' > log
builtin cd "$tree"{folder} && bash {script} {arguments} < /dev/null > /dev/null
"""
NAMED_FILE = re.compile(r"[\w./-]+\.(?:sh|bash|env|ya?ml)\b")
VARIABLE = re.compile(r"\$\{?\w+\}?")
MOST_FILES, MOST_BYTES = 64, 1 << 20
STOPPED = re.compile(r"line (\d+): (\w+: .+|syntax error.*|unexpected EOF .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Called:
    """A command that a script called."""

    folder: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class BashRun:
    """The commands that a script called, and why it stopped before its end."""

    commands: list[Called]
    stop: tuple[int, str] | None = None
    """Line and message of bash."""
    endless: bool = False


def run_bash(
    script: Path, files: Mapping[Path, bytes], arguments: Sequence[str], variables: Mapping[str, str]
) -> BashRun | None:
    """Run a script beside copies of `files`, with further environment variables; None where no sandbox works here."""
    from agentrl_sandbox.errors import SandboxError, UsageError
    from agentrl_sandbox.job import Job, Limits

    copies = {f"tree{path}": content for path, content in files.items()}
    copies |= {"stub": STUB.encode(), "setup": SETUP.encode()}
    limits = Limits(wall=SECONDS, disk_mb=64, processes=64)
    job = Job("bash", _main(script, arguments, variables), files=copies, fetch=["log"], run_limits=limits)
    try:
        result = asyncio.run(_run(job))
    except (SandboxError, UsageError, OSError):
        return None
    return _read(result.runs[-1], result.files.get("log", b"").decode(errors="replace"))


async def _run(job: "Job") -> "Result":
    from agentrl_sandbox.sandbox import Sandbox

    sandbox = Sandbox(max_concurrent=1, sessions=1)
    try:
        return await sandbox.run(job)
    finally:
        await sandbox.close()


def _main(script: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """The program that prepares the folder and starts the script."""
    given = {"AGENTRL_UNKNOWN": mark("COMMAND"), "HOME": str(Path.home()), **variables}
    return RUN.format(
        names=" ".join(NOTED),
        variables=" ".join(f"{name}={shlex.quote(value)}" for name, value in given.items()),
        folder=shlex.quote(str(Path.cwd())),
        script='"$tree"' * script.is_absolute() + shlex.quote(str(script)),
        arguments=shlex.join(arguments),
    )


def named_files(script: Path) -> dict[Path, bytes]:
    """The script and the scripts and YAML files that it names, and those that they name, by absolute path."""
    found, waiting = dict[Path, bytes](), [Path.cwd() / script]
    while waiting and len(found) < MOST_FILES:
        path = Path(os.path.normpath(waiting.pop()))
        if path in found or not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue
        found[path] = path.read_bytes()
        folders = [Path.cwd(), *path.parents]  # the last is the root, for absolute names
        names = NAMED_FILE.findall(VARIABLE.sub("", found[path].decode(errors="replace")))
        waiting += [folder / name.lstrip("/") for name in names for folder in folders]
    return found


def _read(ended: "CommandResult", log: str) -> BashRun:
    (tree, *_), *entries = [entry.split("\0") for entry in log.split("\0\n\0")[:-1]] or [[""]]
    calls = [Called(words[0], tuple(words[1:])) for words in ([word.replace(tree, "") for word in e] for e in entries)]
    stops = STOPPED.findall(ended.stderr.decode(errors="replace"))
    stop = (int(stops[-1][0]), stops[-1][1]) if stops and ended.return_code else None
    return BashRun(calls, stop, ended.limit_hit == "time")
