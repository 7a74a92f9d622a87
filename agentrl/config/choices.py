"""Keys whose value is one of a few words: fixed ones, or the names in a registry, to which users add their own."""

from agentrl.config.keys import marked
from agentrl.config.schema.marks import OpenChoice

REWARD_MANAGERS = ("naive", "dapo", "prime", "batch")

CHOICES: dict[str, tuple[str, ...]] = marked(tuple)
"""By key, all that it takes."""
OPEN = marked(OpenChoice)
"""By key, what it takes besides a path of the user's own and what `model.external_lib` or a plug-in registers."""


def words_of(path: str) -> tuple[str, ...]:
    """The words that a key takes; empty where it takes more than words."""
    return OPEN[path].words if path in OPEN else CHOICES.get(path, ())
