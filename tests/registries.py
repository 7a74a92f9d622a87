"""Registries whose names are forgotten."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.core.registry import Registry


@contextmanager
def scoped(*registries: Registry[Any]) -> Iterator[None]:
    """Within, names may be registered that are forgotten afterwards."""
    before = [dict(registry.registered) for registry in registries]
    try:
        yield
    finally:
        for registry, names in zip(registries, before, strict=True):
            registry.registered = names


def names(registry: Registry[Any]) -> tuple[str, ...]:
    """Names of the built-in objects, without aliases."""
    return tuple(dict.fromkeys(item.names[0] for item in registry.declared.values()))


def anchor(registry: Registry[Any]) -> str:
    """The heading about it in docs/extending.md, as a link names it."""
    return registry.what.lower().replace(" ", "-")
