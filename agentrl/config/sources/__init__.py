"""Settings as they stand in a file that someone brings along, each with the line it is on.

Two kinds of file: YAML, with the files that its `defaults` include where those lie beside it, and shell scripts with
`key=value` arguments. Nothing is translated or judged here.
"""

from pathlib import Path

from agentrl.config.sources.given import Given, Source
from agentrl.config.sources.scripts import Script
from agentrl.config.sources.yaml_files import YamlFiles

__all__ = ["Given", "Source", "read_source"]


def read_source(file: Path) -> Source:
    """Everything that a YAML file or a shell script sets. Raises UserError when it is neither."""
    if file.suffix in (".yaml", ".yml"):
        source = Source()
        YamlFiles(source, file.parent).read(file, "")
        return source
    return Script(file).read()
