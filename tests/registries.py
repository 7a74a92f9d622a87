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
