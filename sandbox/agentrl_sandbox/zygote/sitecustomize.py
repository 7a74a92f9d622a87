"""Python imports this module while it starts as `python /box/main.py`; it stops the start just before main.py runs.

The interpreter asks the path hooks whether main.py is a folder or an archive of modules. The first hook is the fork
server. A fork that runs the user's program returns from the hook: the interpreter then continues its own start and runs
main.py itself, with its own tracebacks, exit codes, atexit and flushing. Nothing has to be imitated.
"""

import os
import sys


def _stop() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [package, *(path for path in sys.path if path != here)]
    from agentrl_sandbox.zygote.fork_server import serve

    sys.path.remove(package)
    sys.path_hooks.insert(0, serve)  # type: ignore[arg-type]  # a hook that finds nothing


_stop()
raise ImportError("serves later", name="sitecustomize")  # site ignores this error without a message
