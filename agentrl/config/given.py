"""Settings whose value is a Python object of the caller's.

The run gets the object itself beside the settings. The settings have a name for it, `<python: NAME>`, so that a run's
config.yaml shows it, and a resumed run notices another object.
"""

from typing import Any

START, END = "<python: ", ">"


def given(name: str) -> str:
    """The value of a setting for an object called `name`."""
    return f"{START}{name}{END}"


def is_given(value: Any) -> bool:
    """Whether a setting stands for an object, which has no file."""
    return isinstance(value, str) and value.startswith(START) and value.endswith(END)


def file_named(value: str | None) -> str | None:
    """The file that a setting names; None where it names none, or stands for an object."""
    return None if is_given(value) else value
