"""A shorter exit for a fork of the zygote, which a program cannot distinguish from the normal one.

Python's exit runs atexit, joins threads, flushes, destroys the program's objects, and then destroys itself. The last
two steps write to, and so copy, most of the memory that all runs share. The last one is skipped: when the interpreter
announces it, the process exits with the code that the interpreter would have returned, which is 0, or 1 after an
uncaught exception. The program's objects are not destroyed if that would do nothing: no finalizer, no open file, no
callback of a weak reference, no unfinished generator, no module of the program. In every other case (SystemExit, an
interrupt, a failing flush, running threads) the exit is the normal one.
"""

import _thread
import builtins
import contextlib
import ctypes
import gc
import io
import os
import sys
import types
import weakref
from typing import Any

_FAILED, _IGNORED, _OVER = "sys.excepthook", "sys.unraisablehook", "cpython.PyInterpreterState_Clear"
_EVENTS = frozenset({_FAILED, _IGNORED, _OVER})
_OFFSET = 144
"""Offset of the file position in glibc's FILE. fflush sets it to unknown."""
_UNKNOWN = -1
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
__builtins__ = vars(builtins).copy()  # type: ignore[assignment]  # a program may change the original
_mro_of, _names_of = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__


class FastExit:
    """The state of the exit. Made in the zygote; each fork changes its own copy."""

    def __init__(self) -> None:
        """Install the audit hook. Raises OSError with an unknown C library."""
        libc = ctypes.PyDLL(None)
        self.flush = libc.fflush
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        # The interpreter handles SystemExit with fflush(stdout) first, which changes this value.
        self.trace = ctypes.c_int64.from_address((stdout.value or 0) + _OFFSET)
        if self.trace.value != _UNKNOWN:
            raise OSError("C's stdout is not as expected")
        self.trace.value = 0
        self.flush(stdout)
        if self.trace.value != _UNKNOWN:
            raise OSError("fflush leaves no trace")
        self.trace.value = 0
        self.code = 0
        self.report = sys.excepthook
        self.doubt = False
        self.reported = False
        self.settled = False
        """The exit code is known before the interpreter's exit begins."""
        self.streams = id(sys.stdout), id(sys.stderr)  # no references: destroying a stream flushes it
        sys.addaudithook(self._audit)

    def _audit(
        self, event: str, arguments: tuple[Any, ...], events: frozenset[str] = _EVENTS, exit_now: Any = os._exit
    ) -> None:
        """Uses no global names: at the end there are none."""
        if event not in events:
            return
        if event == _OVER:
            if self.settled and not self.doubt:
                self.flush(None)  # C's own streams
                exit_now(self.code)
        elif event == _IGNORED:
            self.doubt = True  # it may have been a flush, which changes the exit code
        else:
            self.code = 1
            self.doubt |= issubclass(arguments[1], KeyboardInterrupt) or not _by_the_interpreter()
            # Python's own report of an exception flushes C's streams, too; a program's hook may raise SystemExit.
            self.reported = arguments[0] is self.report and id(sys.stderr) == self.streams[1]

    def at_exit(self) -> None:
        """The last function at exit: exit now if nothing else would happen, else find out whether `_audit` may."""
        try:
            if self.doubt or (self.trace.value == _UNKNOWN and not self.reported) or _thread._count() > 0:
                return
            stdout, stderr = id(sys.stdout) == self.streams[0], id(sys.stderr) == self.streams[1]
            if stderr:
                sys.stderr.flush()  # if it fails, the interpreter is silent and exits with another code
            if stdout and stderr:
                sys.stdout.flush()
                self._exit_now()
            self.settled = stderr or isinstance(sys.stderr, io.StringIO | None)
        except Exception:
            self.doubt = True

    def _exit_now(self) -> None:
        if nothing_to_destroy():
            self.flush(None)
            os._exit(self.code)


def nothing_to_destroy() -> bool:
    """Whether destroying all objects of the program would do nothing. Runs no code of the program."""
    objects = gc.get_objects()
    main = vars(sys.modules["__main__"])
    if gc.callbacks or gc.get_debug() or not any(one is main for one in objects):
        return False  # the last: the program called gc.freeze, which hides its objects
    kinds = {id(kind): kind for kind in map(type, objects)}.values()
    return not any(map(_has_finalizer, kinds)) and not any(_acts(one, type(one)) for one in objects)


def _has_finalizer(kind: type) -> bool:
    return any("__del__" in _names_of(base) for base in _mro_of(kind))


def _acts(one: Any, kind: type) -> bool:
    """Whether destroying an object runs code, apart from a finalizer of its type."""
    if issubclass(kind, types.ModuleType):
        return one is not sys.modules["__main__"]  # its objects may not be listed
    if issubclass(kind, type):
        return _has_finalizer(one)  # its objects may not be listed
    if issubclass(kind, weakref.ref):
        return one.__callback__ is not None
    return kind in _GENERATORS


def _by_the_interpreter() -> bool:
    """Whether the audit hook was called by the C main() and not by a program."""
    with contextlib.suppress(ValueError):
        sys._getframe(2)
        return False
    return True
