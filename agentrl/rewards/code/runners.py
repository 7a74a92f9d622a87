"""Test runners that a script uses: a failure that one of them saw is a failure of the script, asked for or not.

Sent into sandboxes as text. Without it, `unittest.TextTestRunner().run(suite)` or `pytest.main()` as a last line would
pass whatever was found.
"""

import importlib
import os
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

FILE = "test_script.py"
"""The script for runners that read files: its names are those of the main module, which has run it."""
MIRROR = """
import sys
names = vars(sys.modules["__main__"])
globals().update({name: names[name] for name in names if not name.startswith("__") and name not in %r})
"""


class Runners:
    """Watches unittest, doctest and pytest in this process."""

    def __init__(self, source: str, module: types.ModuleType, hidden: Collection[str]) -> None:
        """`hidden`: names of `module`, the main one, that are no tests."""
        self.passes: list[Callable[[], Any]] = []
        self.module = module
        self.hidden = sorted(hidden)
        module.__file__ = os.path.abspath(FILE)
        sys.argv[:] = [FILE]
        with open(FILE, "w", encoding="utf-8") as file:
            file.write(MIRROR % self.hidden)
        for name, watch in (("unittest", self._unittest), ("doctest", self._doctest), ("pytest", self._pytest)):
            if name in source:
                watch(importlib.import_module(name))

    @property
    def passed(self) -> bool:
        """Whether every runner so far was content."""
        return all(passes() for passes in self.passes)

    def run_defined(self) -> None:
        """Run tests that the script has defined and never run, as `pytest script.py` would."""
        own = {name: value for name, value in vars(self.module).items() if name not in self.hidden}
        named = any(name.lower().startswith("test") and callable(value) for name, value in own.items())
        if self.passes or not (named or any(_is_case(value) for value in own.values())):
            return
        try:
            self._pytest(importlib.import_module("pytest"))([FILE, "-q"])
        except ImportError:
            self._unittest(importlib.import_module("unittest"))
            sys.modules["unittest"].main(argv=[FILE], exit=False)

    def _unittest(self, unittest: Any) -> None:
        made = unittest.TestResult.__init__

        def init(result: Any, *args: Any, **named: Any) -> None:
            made(result, *args, **named)
            self.passes.append(result.wasSuccessful)

        unittest.TestResult.__init__ = init

    def _doctest(self, doctest: Any) -> None:
        run = doctest.DocTestRunner.run

        def watched(*args: Any, **named: Any) -> Any:
            found = run(*args, **named)
            self.passes.append(lambda: not found.failed)
            return found

        doctest.DocTestRunner.run = watched

    def _pytest(self, pytest: Any) -> Any:
        main = pytest.main
        # The plugins that happen to be installed are no part of a verdict.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

        def watched(args: Sequence[str] | None = None, plugins: Any = None) -> Any:
            given = [_existing(str(arg)) for arg in (sys.argv[1:] if args is None else args)]
            code = main([*given, "-p", "no:cacheprovider"], plugins)
            self.passes.append(lambda: not code)
            return code

        pytest.main = watched
        return watched


def _is_case(value: Any) -> bool:
    return isinstance(value, type) and any(kind.__name__ == "TestCase" for kind in value.__mro__)


def _existing(arg: str) -> str:
    """An argument of pytest, FILE in place of a path that is not there: the script's own, as its author had it."""
    path, colons, test = arg.partition("::")
    return FILE + colons + test if path.endswith(".py") and not os.path.exists(path) else arg


def clean(stop: SystemExit) -> bool:
    """Whether an exit says that all went well."""
    return stop.code is None or (isinstance(stop.code, int) and stop.code == 0)
