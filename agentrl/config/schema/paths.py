"""Types of the keys that name files and folders.

A type tells `agentrl.config.paths` how to find the value. Checks read nothing of it: to them the value is a text.
"""

from enum import Enum, auto
from typing import Annotated, Any


class PathKind(Enum):
    """How the path of a key is found."""

    FILE = auto()
    CODE = auto()
    MODEL = auto()
    ROWS = auto()
    TEXT = auto()
    LATER = auto()
    OUTPUT = auto()


InputPath = Annotated[str, PathKind.FILE]
"""A file or folder that must exist."""
CodePath = Annotated[str, PathKind.CODE]
"""A Python file that must exist, or a module."""
ModelPath = Annotated[str, PathKind.MODEL]
"""A model's folder, or a hub id."""
RowFiles = Annotated[Any, PathKind.ROWS]
"""A file of rows or a row source, or a list of them."""
TextPath = Annotated[str, PathKind.TEXT]
"""A file that must exist, or its text, which has a brace."""
LaterPath = Annotated[str, PathKind.LATER]
"""A file that may be missing: the code that reads it says so."""
OutputPath = Annotated[str, PathKind.OUTPUT]
"""A file or folder that a run writes."""
