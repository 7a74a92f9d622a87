"""Runs at the start of every Python under `agentrl verl`: verl's names mean agentrl there.

`python -m` puts the working directory first on the path, and verl's users stand in a checkout of verl: the finder comes
before every folder. The environment's own sitecustomize runs as well.
"""

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

with suppress(ImportError):  # another interpreter, such as an engine's: nothing there asks for verl
    from agentrl_verl.modules import provide
    from agentrl_verl.programs import explain_missing, job_words

    provide(programs=True)
    sys.argv = job_words(sys.argv)
    sys.excepthook = explain_missing

_others = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent.resolve()]
if (_spec := PathFinder.find_spec("sitecustomize", _others)) is not None and _spec.loader is not None:
    _spec.loader.exec_module(module_from_spec(_spec))
