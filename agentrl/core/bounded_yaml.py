"""YAML of another person, parsed with bounded work: aliases may make a few lines as large as all memory."""

from itertools import chain
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
        below = chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
        whole = isinstance(node, yaml.ScalarNode)
        seen[id(node)] = 1 + (len(node.value) if whole else sum(_size(child, seen) for child in below))
    return seen[id(node)]
