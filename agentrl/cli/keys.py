"""Prints the configuration keys by section."""

from typing import Any

from agentrl.config.choices import words_of
from agentrl.config.keys import Key, nearest, schema_keys, schema_sections
from agentrl.config.names import written
from agentrl.core.errors import UserError


def print_keys(schema: type, word: str = "") -> None:
    """Print keys whose name or meaning contains `word`, with type and default. Raises UserError if there is none."""
    from rich.console import Console

    console = Console(highlight=False)
    section = None
    for key in matching(schema, word):
        parent = key.path.rpartition(".")[0]
        if parent != section:
            section = parent
            doc = " ".join((schema_sections(schema)[section].__doc__ or "").split())
            console.print(f"\n[bold]{section}[/]  [dim]{doc}[/]\n")
        console.print(_entry(key))


def matching(schema: type, word: str) -> list[Key]:
    """Keys whose name or meaning contains `word`. Raises UserError if there is none."""
    keys = schema_keys(schema)
    found = [key for key in keys.values() if word in key.path or word.lower() in key.doc.lower()]
    if not found:
        guess = nearest(word, keys)
        fix = f"did you mean {guess}?" if guess else "--help-keys alone lists all"
        raise UserError(f"--help-keys {word}: no key has this in its name or meaning; {fix}")
    return found


def _entry(key: Key) -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    words = words_of(key.path)
    kind = " | ".join(words) if words and len(words) <= 4 else key.type_name
    head = Text.assemble("  ", (key.path, "cyan"), f" = {written(key.default)}  ", (kind, "dim"))
    return Group(head, Padding(Text(key.doc), (0, 0, 0, 6)))
