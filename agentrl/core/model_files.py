"""A model's folder, read without transformers."""

from pathlib import Path
from typing import Any

from agentrl.core.foreign import read_object
from agentrl.core.resources import read_text


def language_config(path: str | None) -> dict[str, Any]:
    """The fields of config.json about the language model; empty without such a file, or where it is no JSON, which
    loading the model reports."""
    file = Path(path or "") / "config.json"
    found = (read_object(read_text(file)) if path and file.is_file() else None) or {}
    text = found.get("text_config")
    return {**found, **text} if isinstance(text, dict) else found
