"""Entries of dictionaries, attributes of objects among them, that have other values for some time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(entries: Iterable[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """While the body runs, each dictionary has the value at its key; `vars(owner)` has an object's attributes."""
    new = list(entries)
    before = [values[key] for values, key, _ in new]
    for values, key, value in new:
        values[key] = value
    try:
        yield
    finally:
        for (values, key, _), value in zip(new, before, strict=True):
            values[key] = value
