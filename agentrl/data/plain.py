"""Converts values from parquet, JSON and users' datasets to plain Python.

Parquet gives every row of a column one struct type, so a key that any row has comes back from all rows, as None.
Such keys were never written: they are dropped, or a tool would be created for every row of a mixed dataset.
"""

import json
from collections.abc import Mapping
from typing import Any

from agentrl.core.json_text import whole


def plain(value: Any) -> Any:
    """Mappings as dicts without None values, sequences and arrays as lists, array scalars as Python numbers.

    Half a surrogate pair (JSON text that was cut between the two) becomes U+FFFD: no tokenizer reads it.
    """
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {whole(str(key)): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return plain(value.tolist())
    return value


def mapping(value: Any) -> dict[str, Any]:
    """A dict from a mapping, None, or the JSON text of an object. Raises ValueError for other values."""
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{type(value).__name__} where an object was expected")
    found: dict[str, Any] = plain(value)
    return found
