"""Python imports this while it starts as `python /box/main.py`, and here it stops to serve.

A fork that is to run the user's program simply returns from here: the interpreter goes on with its own start and runs
main.py itself, with its own tracebacks, exit codes, atexit and flushing. Nothing has to be imitated.
"""

import os
import sys


def _serve() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path[:] = [package, *(path for path in sys.path if path != here)]
    from agentrl.sandbox.zygote.server import serve

    sys.path.remove(package)
    serve()


_serve()
raise ImportError("served", name="sitecustomize")  # what site expects where there is none: it goes on in silence
