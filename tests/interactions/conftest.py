"""Interaction files written to disk and loaded from there, as a user's are."""

from itertools import count
from textwrap import dedent

import pytest

from agentrl.interactions import load_interactions


@pytest.fixture
def write(tmp_path):
    """Write a file of that name into the test's folder; returns its path as text."""

    def write(name, text):
        (tmp_path / name).write_text(dedent(text), encoding="utf-8")
        return str(tmp_path / name)

    return write


@pytest.fixture
def one(write):
    """An InteractionSet of one class `UserInteraction` in the given source."""
    modules = (f"user{i}" for i in count())

    def one(source, config="{}"):
        module = next(modules)
        write(f"{module}.py", "from agentrl.interactions import BaseInteraction\n" + dedent(source))
        yaml = f"interaction:\n  - class_name: {module}.UserInteraction\n    config: {config}\n"
        return load_interactions(write("interactions.yaml", yaml))

    return one
