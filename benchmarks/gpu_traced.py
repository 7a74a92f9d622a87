"""`agentrl` with a file of the moments at which its phases begin: gpu_traced.py FILE train ...

Each line is [seconds since the epoch, phase], "" where one ends and none continues. Nothing is imported earlier than
`agentrl` imports it, so that its start costs what it costs.
"""

import importlib.util
import json
import runpy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRACED = "agentrl.tracking.phases"


class Trace:
    """Writes the phases of `Phases`, once that is imported."""

    def __init__(self, file: str) -> None:
        self._stream = open(file, "a", buffering=1)  # noqa: SIM115
        self._stack = [""]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Python asks each finder in `sys.meta_path` this; only one module is changed."""
        if name != TRACED:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def wrapped(module: Any) -> None:
            run(module)
            self._wrap(module.Phases)

        spec.loader.exec_module = wrapped
        return spec

    def _wrap(self, phases: Any) -> None:
        original = phases.__call__

        @contextmanager
        def traced(this: Any, name: str, **options: Any) -> Iterator[None]:
            with original(this, name, **options):
                self._stack.append(name)
                self._mark()
                try:
                    yield
                finally:
                    self._stack.pop()
                    self._mark()

        phases.__call__ = traced

    def _mark(self) -> None:
        self._stream.write(json.dumps([time.time(), self._stack[-1]]) + "\n")


if __name__ == "__main__":
    sys.meta_path.insert(0, Trace(sys.argv.pop(1)))
    del sys.path[0]  # the version that PYTHONPATH names comes first, not this script's folder
    print("agentrl of", importlib.util.find_spec("agentrl").origin, flush=True)  # type: ignore[union-attr]
    runpy.run_module("agentrl", run_name="__main__", alter_sys=True)
