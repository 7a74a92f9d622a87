"""Reads JSON and YAML of strangers with bounded work.

A short text can stand for a large value: 15 MiB of `[],` become 400 MB, and ten lines of YAML that refer to each other
ten billion values.
"""

import json
from pathlib import Path
from typing import Any

import yaml

MOST_PARTS = 1_000_000
"""Lists and mappings of a text, or values with all that YAML repeats."""
MOST_CHARACTERS = 1 << 18
"""Characters of a YAML file: its reader takes seconds for as many."""
MOST_DIGITS = 4000
DEEPEST = 32
"""Levels of brackets in YAML: its reader looks at each of them at each word."""


class Loader(yaml.SafeLoader):
    """PyYAML's, with a limit of depth. Not libyaml's: it crashes on a text of brackets."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """An opening bracket."""
        if self.flow_level >= DEEPEST:
            raise yaml.YAMLError("it is nested too deep")
        super().fetch_flow_collection_start(TokenClass)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also for one that is too large or too deep."""
    require_parts(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_object(text: str | bytes) -> dict[str, Any] | None:
    """The object of a JSON text; None where it is another value, or no JSON."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def require_parts(text: str | bytes) -> None:
    """Raises ValueError for a JSON text of too many lists and mappings."""
    opening = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, opening)) > MOST_PARTS:  # type: ignore[arg-type]
        raise ValueError(f"it has more than {MOST_PARTS} lists and mappings")


def read_yaml(text: str) -> Any:
    """The value of a YAML text, with plain values only. Raises yaml.YAMLError, also for one that is too large."""
    if len(text) > MOST_CHARACTERS:
        raise yaml.YAMLError(f"it is longer than {MOST_CHARACTERS} characters")
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _parts(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
    except ValueError as error:  # a date that is none, say
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


def read_beside(module: str | Path, name: str) -> Any:
    """The value of the YAML file `name` beside a module of ours; libyaml, if installed, takes a tenth of the time."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(module).with_name(name).read_text(encoding="utf-8"), Loader=loader)


def _parts(node: yaml.Node, known: dict[int, int]) -> int:
    """Values under a node, repeated ones counted each time. Raises yaml.YAMLError."""
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > MOST_DIGITS and node.tag.endswith((":int", ":float")):
            raise yaml.YAMLError("it has a number of too many digits")
        return 1
    if id(node) not in known:
        known[id(node)] = MOST_PARTS + 1  # until it is counted: a node within itself has no end
        below = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_parts(part, known) for part in below)
    if known[id(node)] > MOST_PARTS:
        raise yaml.YAMLError(f"it has more than {MOST_PARTS} values, or one that holds itself")
    return known[id(node)]
