"""Task folders from the files `folders/*.task` and `special/*.task`: each holds the files of one task.

A line `==> PATH` begins a file. The word BASE stands for an image that has Python, git, make, gcc and curl.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.sandbox.docker.engine import Engine

HERE = Path(__file__).parent
IMAGE = "agentrl-test-tasks"
DOCKERFILE = """\
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends \\
    python3 python3-pytest git make gcc libc6-dev curl procps && rm -rf /var/lib/apt/lists/*
"""


def unpack(kind: str, to: Path, *names: str, image: str = IMAGE) -> Path:
    """Write the tasks of `folders` or `special`, all of them or those named, as folders into `to`."""
    for file in sorted((HERE / kind).glob("*.task")):
        if not names or file.stem in names:
            for path, text in files_of(file.read_text()):
                place = to / file.stem / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(
                    re.sub(
                        r'^(FROM |docker_image = "| +image: )(?:BASE|IMAGE)\b',
                        rf"\g<1>{image}",
                        text,
                        flags=re.MULTILINE,
                    )
                )
    return to


def have_image(engine: Engine, folder: Path) -> str:
    """The image that all tasks can run in; built in a minute, once, with files in `folder`."""
    if not engine.docker("images", "--quiet", IMAGE).strip():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Dockerfile").write_text(DOCKERFILE)
        engine.docker("build", "-t", IMAGE, "--build-arg", f"BASE={engine.base()}", str(folder), timeout=600)
    return IMAGE


def files_of(text: str) -> Iterator[tuple[str, str]]:
    """(path, content) of each file."""
    parts = re.split(r"^==> (.+)\n", text, flags=re.MULTILINE)[1:]
    yield from zip(parts[::2], parts[1::2], strict=True)
