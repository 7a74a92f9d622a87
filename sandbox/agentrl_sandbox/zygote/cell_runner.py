"""The user's side of a session: reads cells from one pipe, runs them in __main__, and writes exit codes to another.

Imports nothing of the package: tiers that do not fork interpreters start it as source text.
"""

import ast
import contextlib
import linecache
import os
import sys
import traceback
from types import CodeType
from typing import Any


def main(requests: int, replies: int) -> None:
    """Serve until `requests` closes. A cell: 4 bytes of length, UTF-8. An answer: the exit code as a decimal line."""
    names: dict[str, Any] = sys.modules["__main__"].__dict__
    names.pop("main", None)
    sys.argv[:] = [""]
    sys.path.insert(0, "")
    count = 0
    while head := os.read(requests, 4):
        count += 1
        code = _run(_exactly(requests, int.from_bytes(head, "big")).decode(errors="replace"), count, names)
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os.write(replies, b"%d\n" % code)


def _exactly(handle: int, size: int) -> bytes:
    parts = []
    while size:
        parts.append(os.read(handle, size))
        size -= len(parts[-1])
    return b"".join(parts)


def _run(source: str, count: int, names: dict[str, Any]) -> int:
    """Run a cell and print the value of a last expression; the exit code."""
    file = f"<cell {count}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        body, last = _compiled(source, file)
        exec(body, names)
        if last is not None:
            sys.displayhook(eval(last, names))
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:
        tail = error.__traceback__
        while tail is not None and tail.tb_frame.f_code.co_filename != file:
            tail = tail.tb_next
        traceback.print_exception(type(error), error, tail)
        return 1
    return 0


def _compiled(source: str, file: str) -> "tuple[CodeType, CodeType | None]":
    tree = ast.parse(source, file)
    end = tree.body[-1] if tree.body else None
    last = None
    if isinstance(end, ast.Expr):
        last = compile(ast.Expression(end.value), file, "eval")
        tree.body.pop()
    return compile(tree, file, "exec"), last


def _exit_code(code: Any) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):  # the user may have replaced or closed it
        stream.flush()
