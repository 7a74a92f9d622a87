"""Row sources by name: `tasks:FOLDER` or `env:NAME` in place of a file of rows.

A source is the name of a function in `ROW_SOURCES`, or the path of one (`file.py:function`), and its argument after a
colon. A URL is no source, and neither is a file that is there.
"""

import re
from pathlib import Path
from typing import Any

NAMED = re.compile(r"([A-Za-z][\w-]*):(?!//)(.*)")
BY_PATH = re.compile(r"([^:]+\.py:\w+)(?::(.*))?")


def split_source(value: Any) -> tuple[str, str] | None:
    """(name, argument) of a row source; None for what is none."""
    if not isinstance(value, str):
        return None
    found = BY_PATH.fullmatch(value) or NAMED.fullmatch(value)
    return None if found is None or Path(value).exists() else (found[1], found[2] or "")
