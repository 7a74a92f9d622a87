"""An image with Python and the `mcp` package of this interpreter: no index is asked."""

import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.sandbox.docker.engine import Engine
from tests.tasks.harbor.unpack import have_image

IMAGE = "agentrl-test-mcp"
PACKAGES = ("mcp", "cryptography")
"""The latter is an extra of one that the former needs."""


def have_mcp_image(engine: Engine, folder: Path) -> str:
    """Built in seconds, once, with files in `folder`; the image has this interpreter's version of Python."""
    if not engine.docker("images", "--quiet", IMAGE).strip():
        base = have_image(engine, folder / "base")
        seen = set[str]()
        for package in (found for name in PACKAGES for found in _needed(name, seen)):
            for file in distribution(package).files or ():
                if ".." not in file.parts and (source := Path(str(file.locate()))).is_file():
                    target = folder / "site" / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, target)
        (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY site /site\nENV PYTHONPATH=/site\n")
        engine.docker("build", "-t", IMAGE, str(folder), timeout=300)
    return IMAGE


def _needed(package: str, seen: set[str]) -> Iterator[str]:
    """A package and all that it needs and that is installed."""
    name = re.sub(r"[-_.]+", "-", package).lower()
    if name in seen:
        return
    seen.add(name)
    try:
        requires = distribution(name).requires or ()
    except PackageNotFoundError:  # of another system
        return
    yield name
    for line in (one for one in requires if "extra ==" not in one):
        yield from _needed(re.split(r"[^\w.-]", line, maxsplit=1)[0], seen)
