"""Runs notebook cells one after another, inside the sandbox: the program of /run_jupyter.

Reads {"cells": [...], "cell_timeout": seconds} from standard input and writes one line of JSON per cell to the original
standard output. IPython runs the cells if it is installed, else `exec`. Uses the standard library only, because it is
sent as source.
"""

import ast
import asyncio
import base64
import builtins
import contextlib
import importlib
import inspect
import io
import json
import linecache
import os
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from typing import Any

KEEP = 1 << 20
MIME = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}


class CellTimeout(BaseException):
    """A cell took too long; no `except Exception` of the cell's own swallows it."""


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def bundle(value: Any) -> dict[str, Any]:
    """Mime type -> data, by the methods that notebooks look for."""
    data: dict[str, Any] = {"text/plain": repr(value)}
    for mime, method in MIME.items():
        show = None if isinstance(value, type) else getattr(value, method, None)
        with contextlib.suppress(Exception):
            shown = show() if callable(show) else None
            if shown is not None:
                data[mime] = plain(shown[0] if isinstance(shown, tuple) else shown)
    return data


def figures() -> list[dict[str, Any]]:
    """Matplotlib's open figures as bundles; closes them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    shown: list[dict[str, Any]] = []
    for number in pyplot.get_fignums() if pyplot else ():
        figure, file = pyplot.figure(number), io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        shown.append({"text/plain": repr(figure), "image/png": plain(file.getvalue())})
    if shown:
        pyplot.close("all")
    return shown


class PlainKernel:
    """`exec` in a namespace of its own; the value of a last expression is shown."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.module.__dict__["display"] = self.show
        self.display: list[dict[str, Any]] = []
        self.error: list[dict[str, Any]] = []
        self.loop: Any = None

    def show(self, *values: Any) -> None:
        """The notebook's `display`."""
        self.display += [bundle(value) for value in values]

    def run(self, source: str, number: int) -> None:
        """Run one cell; fills `display` and `error`."""
        name = f"<cell {number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        try:
            value = self.evaluate(source, name)
            if value is not None and not source.rstrip().endswith(";"):
                builtins.__dict__["_"] = value
                self.show(value)
        except BaseException as error:
            self.report(error)

    def evaluate(self, source: str, name: str) -> Any:
        """The value of the last expression."""
        lines = ["" if line.startswith("%matplotlib") else line for line in source.split("\n")]
        tree = ast.parse("\n".join(lines), name)
        last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is None:
            return None
        return self.execute(compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def execute(self, code: types.CodeType) -> Any:
        """Run code, in an event loop where it awaits."""
        value = eval(code, self.module.__dict__)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        self.loop = self.loop or asyncio.new_event_loop()
        return self.loop.run_until_complete(value)

    def report(self, error: BaseException) -> None:
        """A traceback that begins in the cell."""
        frames = error.__traceback__
        while frames and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        lines = traceback.format_exception(type(error), error, frames)
        self.error.append({"ename": type(error).__name__, "evalue": str(error), "traceback": lines})


class IPythonKernel:
    """IPython's shell, with what it shows and reports collected."""

    def __init__(self) -> None:
        self.display: list[dict[str, Any]] = []
        self.error: list[dict[str, Any]] = []
        self.module = types.ModuleType("__main__")
        core: Any = importlib.import_module("IPython.core.interactiveshell")
        importlib.import_module("IPython.core.history").HistoryManager.enabled = False
        kernel = self

        class Hook(core.DisplayHook):
            def write_output_prompt(self) -> None:
                """Nothing."""

            def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
                kernel.display.append(tidy(format_dict))

        class Publisher(core.DisplayPublisher):
            def publish(self, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
                kernel.display.append(tidy(data))

        class Shell(core.InteractiveShell):
            def enable_gui(self, gui: Any = None) -> None:
                """There is none."""

            def _showtraceback(self, kind: type, error: BaseException, lines: list[str]) -> None:
                kernel.error.append({"ename": kind.__name__, "evalue": str(error), "traceback": list(lines)})

        self.shell = Shell.instance(displayhook_class=Hook, display_pub_class=Publisher, user_module=self.module)

    def run(self, source: str, number: int) -> None:
        """Run one cell; fills `display` and `error`."""
        self.shell.run_cell(source, store_history=True)


def tidy(data: dict[str, Any]) -> dict[str, Any]:
    """A mime bundle without bytes."""
    return {mime: plain(value) for mime, value in data.items()}


@contextlib.contextmanager
def captured(record: dict[str, Any]) -> Iterator[None]:
    """Send descriptors 1 and 2 to files, and put what they got into the record: child processes write there too."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield
        finally:
            flush(sys.stdout)
            flush(sys.stderr)
            for name, file in (("stdout", out), ("stderr", err)):
                record[name] = os.pread(file.fileno(), KEEP, 0).decode("utf-8", "replace")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)


def flush(stream: Any) -> None:
    """A cell may have put anything in a stream's place."""
    with contextlib.suppress(Exception):
        stream.flush()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise CellTimeout inside after that many seconds; 0: never."""

    def stop(*_: Any) -> None:
        raise CellTimeout(f"the cell took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_cell(kernel: Any, source: str, number: int, seconds: float) -> dict[str, Any]:
    """One cell's record."""
    kernel.display, kernel.error = [], []
    record: dict[str, Any] = {}
    with captured(record):
        try:
            with limited(seconds):
                kernel.run(source, number)
        except BaseException as error:  # the alarm rang between the cell's end and the timer's
            kernel.error.append({"ename": type(error).__name__, "evalue": str(error), "traceback": []})
        with contextlib.suppress(Exception):
            kernel.display += figures()
    return record | {"display": kernel.display, "error": kernel.error}


def make_kernel() -> Any:
    """IPython's where there is one."""
    try:
        return IPythonKernel()
    except ImportError:
        return PlainKernel()


def main() -> None:
    """Run the cells that standard input names."""
    sent = json.load(sys.stdin)
    replies, me = os.fdopen(os.dup(1), "w"), os.getpid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):
        os.unlink(__file__)
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("IPYTHONDIR", tempfile.mkdtemp())  # rather than in the work folder
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    kernel = make_kernel()
    sys.modules["__main__"] = kernel.module
    for number, source in enumerate(sent["cells"], 1):
        record = run_cell(kernel, source, number, sent["cell_timeout"])
        if os.getpid() != me:  # a cell forked, and this is its child
            os._exit(0)
        replies.write(json.dumps(record, default=repr) + "\n")
        replies.flush()
    os._exit(0)  # threads that a cell left behind are not waited for


if __name__ == "__main__":
    main()
