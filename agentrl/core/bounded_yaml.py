"""YAML of another person, parsed with bounded work: aliases may make a few lines as large as all memory."""

from collections.abc import Iterator
from math import inf
from typing import Any

import yaml

from agentrl.core.errors import UserError

MOST = 4 * 2**20
"""Characters and nodes of a document, each alias counted as what it stands for."""


def parse_yaml(text: str, what: str) -> Any:
    """The document as plain data. Raises UserError, which begins with `what`."""
    if len(text) > MOST:
        raise UserError(f"{what} has more than {MOST >> 20} million characters")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > MOST:
            raise UserError(f"{what}: its aliases make it larger than {MOST >> 20} million characters")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{what}: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def _size(node: yaml.Node, seen: dict[int, float]) -> float:
    """A node that holds itself has no end."""
    if id(node) not in seen:
        seen[id(node)] = inf
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        seen[id(node)] = 1 + own + sum(_size(child, seen) for child in _children(node))
    return seen[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
