"""Entries of dictionaries, attributes of objects among them, that have other values for some time."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(entries: Iterable[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """While the body runs, each dictionary has the value at its key; `vars(owner)` has an object's attributes."""
    with ExitStack() as before:
        for values, key, value in [*entries]:
            before.callback(values.__setitem__, key, values[key])
            values[key] = value
        yield
