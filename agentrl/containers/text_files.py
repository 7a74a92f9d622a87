"""Text files of a container, read and written by `exec` alone.

Invariant: a file that is written back differs from the one that was read only where it was edited: line ends and bytes
that are no UTF-8 stay.
"""

from base64 import b64decode
from binascii import Error as NoBase64

from agentrl.containers.contract import Container, Done
from agentrl.containers.shell_scripts import LOOK
from agentrl.core.errors import last_line
from agentrl.tools.response import ModelError

TIMEOUT = 60.0
PART_BYTES = 48 << 10
"""Bytes a read; providers shorten outputs."""
MAX_BYTES = 1 << 20
MAX_ENTRIES = 500
LEVELS = 2
"""Levels of a folder that are listed."""
WRITE = 'mkdir -p "$(dirname "$1")" && cat >"$1"'


async def look(container: Container, path: str, user: str | None = None) -> str | list[str]:
    """The text of a file, or the files and folders below a folder. Raises ModelError for all else, and InfraError."""
    content = b""
    while True:
        done = await _run(container, LOOK, path, str(len(content) + 1), user=user)
        kind, _, rest = done.stdout.partition("\n")
        if kind == "folder":
            return rest.splitlines()[:MAX_ENTRIES]
        if not kind.startswith("file "):
            raise ModelError(_refused(path, kind))
        content += _decoded(path, rest)
        size = int(kind.removeprefix("file "))
        if size > MAX_BYTES:
            raise ModelError(f"Error: {path} has {size} bytes, too many to view at once. Use head, tail or sed.")
        if len(content) >= size or not rest:
            if b"\0" in content:
                raise ModelError(f"Error: {path} is no text file.")
            return content.decode(errors="surrogateescape")


async def write(container: Container, path: str, text: str, user: str | None = None) -> None:
    """Write a file; folders above it are made. Raises ModelError where it cannot be written, and InfraError."""
    content = text.encode(errors="surrogateescape")
    done = await _run(container, WRITE, path, stdin=content, user=user)
    if done.code != 0:
        raise ModelError(f"Error: {path} was not written. {last_line(done.output)}")


async def _run(container: Container, script: str, *words: str, user: str | None, stdin: bytes | None = None) -> Done:
    limits = (str(LEVELS), str(MAX_ENTRIES), str(PART_BYTES))
    argv = ["sh", "-c", script, "sh", *words, *limits]
    done = await container.exec(argv, timeout=TIMEOUT, user=user, stdin=stdin)
    if done.code is None:
        raise ModelError(f"Error: {words[0]} took longer than {TIMEOUT:g} seconds.")
    return done


def _refused(path: str, kind: str) -> str:
    if kind == "missing":
        return f"Error: there is no file or folder {path}."
    return f"Error: {path} is {kind}." if kind else f"Error: {path} cannot be read."


def _decoded(path: str, text: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except NoBase64:
        raise ModelError(f"Error: {path} cannot be read.") from None
