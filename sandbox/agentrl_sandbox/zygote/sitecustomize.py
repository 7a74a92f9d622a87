"""Python imports this while it starts as `python /box/main.py`, and is made to stop, just before it runs that file.

It asks the path hooks whether the file is a folder or an archive of modules. The first hook is ours: it serves. A fork
that is to run the user's program simply returns from it: the interpreter goes on with its own start and runs main.py
itself, with its own tracebacks, exit codes, atexit and flushing. Nothing has to be imitated.
"""

import os
import sys


def _stop() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [package, *(path for path in sys.path if path != here)]
    from agentrl_sandbox.zygote.server import serve

    sys.path.remove(package)
    sys.path_hooks.insert(0, serve)  # type: ignore[arg-type]  # a hook that finds nothing


_stop()
raise ImportError("serves later", name="sitecustomize")  # what site expects where there is none: it goes on in silence
