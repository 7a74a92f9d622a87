"""What is not built in is there, and keeps its contract, before anything slow begins."""

from collections.abc import Iterator
from typing import Any

from agentrl.config.checks.files import as_list
from agentrl.config.choices import OPEN, OpenChoice
from agentrl.config.keys import value_at
from agentrl.core import points
from agentrl.core.plugins import import_external
from agentrl.core.row_sources import split_source

SOURCES = OpenChoice(points.ROW_SOURCES)


def own_objects(config: Any) -> None:
    """Find each object of the user's own that a key names: by its path, registered, or in a plug-in. Raises UserError.

    What is built in is not loaded: torch may come with it.
    """
    named = [(choice, key, word) for choice, key, word in _named(config) if not choice.built_in(word)]
    if named:
        import_external(value_at(config, "model.external_lib"), "model")
    for choice, key, word in named:
        choice.load(word, key)


def _named(config: Any) -> Iterator[tuple[OpenChoice, str, str]]:
    for key, choice in OPEN.items():
        value = value_at(config, key)
        for word in value if isinstance(value, list) else [value]:
            module = choice.module and value_at(config, f"{key.rpartition('.')[0]}.{choice.module}")
            if word is not None:
                yield choice, key, f"{module}.{word}" if module else word
    for key in ("data.train_files", "data.val_files", "data.path"):
        for source in filter(None, map(split_source, as_list(value_at(config, key)))):
            yield SOURCES, key, source[0]
