"""A shorter end for a fork of the warm interpreter: nobody can tell it from the long one.

Python's end runs atexit, joins threads, flushes, destroys what the program made, and then takes itself apart. The last
two write to, and so copy, most of the memory that all runs share. What takes itself apart is left out: when the
interpreter says that this comes next, the process exits, with the code that the interpreter would have returned. That
is 0, or 1 after an exception that nobody caught. What the program made is left standing where its end would do
nothing: no finalizer, open file, weak reference's callback or unfinished generator, and no module of its own.
Wherever more is to be known (SystemExit, an interrupt, a failing flush, running threads) the end is the long one.
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
_HEARD = frozenset({_FAILED, _IGNORED, _OVER})
_OFFSET = 144
"""Where glibc keeps, in a FILE, what it knows of the file's position. fflush makes it forget."""
_FORGOTTEN = -1
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
__builtins__ = vars(builtins).copy()  # type: ignore[assignment]  # a program may change the others
_mro_of, _names_of = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__


class Ending:
    """What is known of how this process will end. Made in the server; a program changes its own fork's copy."""

    def __init__(self) -> None:
        """Listen, from now on. OSError where C's library is not the one expected."""
        libc = ctypes.PyDLL(None)
        self.flush = libc.fflush
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        # The interpreter, when it handles SystemExit, begins with fflush(stdout). That leaves a trace here.
        self.trace = ctypes.c_int64.from_address((stdout.value or 0) + _OFFSET)
        if self.trace.value != _FORGOTTEN:
            raise OSError("C's stdout is not as expected")
        self.trace.value = 0
        self.flush(stdout)
        if self.trace.value != _FORGOTTEN:
            raise OSError("fflush leaves no trace")
        self.trace.value = 0
        self.code = 0
        self.report = sys.excepthook
        self.doubt = False
        self.reported = False
        self.settled = False
        """What can be known before the interpreter begins its end is known."""
        self.streams = id(sys.stdout), id(sys.stderr)  # no references, for their end flushes them
        sys.addaudithook(self._hear)

    def _hear(
        self, event: str, arguments: tuple[Any, ...], heard: frozenset[str] = _HEARD, leave: Any = os._exit
    ) -> None:
        """Needs no global names: at the end there are none."""
        if event not in heard:
            return
        if event == _OVER:
            if self.settled and not self.doubt:
                self.flush(None)  # C's own streams
                leave(self.code)
        elif event == _IGNORED:
            self.doubt = True  # it may have been a flush: that changes the exit code
        else:
            self.code = 1
            self.doubt |= issubclass(arguments[1], KeyboardInterrupt) or not _by_the_interpreter()
            # Python's own report of an exception flushes C's streams, too; a program's might end in SystemExit.
            self.reported = arguments[0] is self.report and id(sys.stderr) == self.streams[1]

    def leave(self) -> None:
        """Last of the functions at exit: exit where nothing more would happen, else see whether that may come later."""
        try:
            if self.doubt or (self.trace.value == _FORGOTTEN and not self.reported) or _thread._count() > 0:
                return
            stdout, stderr = id(sys.stdout) == self.streams[0], id(sys.stderr) == self.streams[1]
            if stderr:
                sys.stderr.flush()  # when it fails the interpreter says nothing, and ends with another code
            if stdout and stderr:
                sys.stdout.flush()
                self._leave_now()
            self.settled = stderr or isinstance(sys.stderr, io.StringIO | None)
        except Exception:
            self.doubt = True

    def _leave_now(self) -> None:
        if nothing_to_destroy():
            self.flush(None)
            os._exit(self.code)


def nothing_to_destroy() -> bool:
    """Whether the end of all objects of the program would do nothing. Runs no code of the program's."""
    objects = gc.get_objects()
    main = vars(sys.modules["__main__"])
    if gc.callbacks or gc.get_debug() or not any(one is main for one in objects):
        return False  # the last: the program has hidden its objects by gc.freeze
    kinds = {id(kind): kind for kind in map(type, objects)}.values()
    return not any(map(_has_finalizer, kinds)) and not any(_acts(one, type(one)) for one in objects)


def _has_finalizer(kind: type) -> bool:
    return any("__del__" in _names_of(base) for base in _mro_of(kind))


def _acts(one: Any, kind: type) -> bool:
    """Whether destroying an object runs code, but for a finalizer of its type."""
    if issubclass(kind, types.ModuleType):
        return one is not sys.modules["__main__"]  # which may have made what is not listed
    if issubclass(kind, type):
        return _has_finalizer(one)  # its objects need not be listed
    if issubclass(kind, weakref.ref):
        return one.__callback__ is not None
    return kind in _GENERATORS


def _by_the_interpreter() -> bool:
    """Whether the audit hook, which asks, was called by the C main() and not by a program."""
    with contextlib.suppress(ValueError):
        sys._getframe(2)
        return False
    return True
