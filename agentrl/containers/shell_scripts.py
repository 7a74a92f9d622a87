"""The shell programs for containers, a file each in `scripts`: POSIX sh, with bash's abilities where it is there.

Each shell of `shell` has a folder in the container: the named pipe `go` brings it commands, the named pipe `done` takes
its answers away ("NUMBER CODE NEXT", or "gone CODE" once it has ended), `out.0` has the output of a command, `jobs` the
process ids of background jobs, and `state` is written when the shell ends. After a command that left background jobs,
which still write to its output, the next one has another file: NEXT.
"""

from pathlib import Path

FOLDER = Path(__file__).with_name("scripts")
LOOP = (
    r""". "$1/prepare"; set --; while __next; do { command eval "$__command"; } >>"$__file" 2>&1 </dev/null 9>&-; """
    '__answer "$?"; done'
)
"""Runs commands one after another. One line, as messages of bash name the line."""
MARK = "AGENTRL_COMMAND"
"""Variable of a command and its children; no other command has its value."""


def script(*names: str) -> str:
    """The files of these names as one program: the last one uses the functions of those before."""
    return "".join((FOLDER / f"{name}.sh").read_text(encoding="utf-8") for name in names)


PREPARE = script("prepare")
START = script("start")
CALL = script("report", "call")
INTERRUPT = script("report", "processes", "interrupt")
END = script("processes", "end")
LOOK = script("look")
AS_USER = script("as_user")
KILL = script("kill")
"""For `sh -c KILL kill VALUE`: ends the processes with this value of MARK, as no engine can do it from outside."""
