"""What is not built in is there, and keeps its contract, before anything slow begins."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

from agentrl.config.choices import OPEN, OpenChoice
from agentrl.core.plugins import import_external


def own_objects(config: Any) -> None:
    """Find each object of the user's own that a key names: by its path, registered, or in a plug-in. Raises UserError.

    What is built in is not loaded: torch may come with it.
    """
    named = [(choice, key, word) for choice, key, word in _named(config) if not choice.built_in(word)]
    if named:
        import_external(_get(config, "model.external_lib"), "model")
    for choice, key, word in named:
        choice.load(word, key)


def _named(config: Any) -> Iterator[tuple[OpenChoice, str, str]]:
    for key, choice in OPEN.items():
        value = _get(config, key)
        for word in value if isinstance(value, list) else [value]:
            if word is not None:
                yield choice, key, word


def _get(config: Any, path: str) -> Any:
    return reduce(lambda node, name: getattr(node, name, None), path.split("."), config)
