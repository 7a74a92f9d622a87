"""Keys whose value is one of a few words: fixed ones, or the names in a registry, to which users add their own.

A user's own object is found, and keeps its contract, before anything slow begins.
"""

from collections.abc import Iterator
from typing import Any

from agentrl.config.keys import as_list, marked, places, value_at
from agentrl.config.schema.marks import OpenChoice
from agentrl.core import points
from agentrl.core.plugins import import_external
from agentrl.core.row_sources import split_source

REWARD_MANAGERS = ("naive", "dapo", "prime", "batch")

CHOICES: dict[str, tuple[str, ...]] = marked(tuple)
"""By key, all that it takes."""
OPEN = marked(OpenChoice)
"""By key, what it takes besides a path of the user's own and what `model.external_lib` or a plug-in registers."""
SOURCES = OpenChoice(points.ROW_SOURCES)


def words_of(path: str) -> tuple[str, ...]:
    """The words that a key takes; empty where it takes more than words."""
    return OPEN[path].words if path in OPEN else CHOICES.get(path, ())


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
    for place in places(config, OpenChoice):
        module = place.mark.module and getattr(place.owner, place.mark.module)
        yield from ((place.mark, place.key, f"{module}.{word}" if module else word) for word in place.values)
    data = value_at(config, "data")
    for key, files in (data.files() if data else {}).items():
        for source in filter(None, map(split_source, as_list(files))):
            yield SOURCES, key, source[0]
