"""Settings as they stand in a file that someone brings along, each with the line it is on.

Two kinds of file: YAML, with the files that its `defaults` include where those lie beside it, and shell scripts, with
the programs that they start. Nothing is translated or judged here.
"""

from collections.abc import Sequence
from pathlib import Path

from agentrl.config.sources.given import Given, Source
from agentrl.config.sources.scripts import read_script
from agentrl.config.sources.yaml_files import YamlFiles

__all__ = ["Given", "Source", "read_source", "read_sources"]


def read_sources(file: Path, arguments: Sequence[str] = ()) -> list[Source]:
    """A YAML file, or each program that a shell script starts with `arguments`. Raises UserError when it is neither."""
    if file.suffix not in (".yaml", ".yml"):
        return read_script(file, arguments)
    source = Source()
    YamlFiles(source, file.parent).read(file, "")
    return [source]


def read_source(file: Path) -> Source:
    """The first of them; an empty one for a script that starts nothing."""
    return next(iter(read_sources(file)), Source())
