"""Tool files written to disk and loaded from there, as a user's are."""

from itertools import count
from textwrap import dedent

import pytest

from agentrl.tools import load_tools

ECHO_SCHEMA = """
    tool_schema:
      type: function
      function:
        name: {name}
        description: Says it back.
        parameters:
          type: object
          properties:
            text: {{type: string}}
          required: [text]
"""


@pytest.fixture
def write(tmp_path):
    """Write a file of that name into the test's folder; returns its path as text."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def load():
    """load_tools with limits that do not get in the way."""

    def load(yaml_path=None, function_path=None, **settings):
        settings = {"max_response": 1000, "unit": "characters", "side": "middle"} | settings
        return load_tools(yaml_path, function_path, **settings)

    return load


@pytest.fixture
def one_tool(write, load):
    """A ToolSet with one tool called `name`, its class `Tool` in the given source, its config in the given YAML."""

    modules = (f"mytool{i}" for i in count())  # a file is imported once per process

    def one_tool(source, config="{}", name="echo", **settings):
        module = next(modules)
        write(f"{module}.py", dedent("from agentrl.tools import *\n") + dedent(source))
        entry = f"tools:\n  - class_name: {module}.Tool\n    config: {config}\n"
        return load(write("tools.yaml", entry + ECHO_SCHEMA.format(name=name).lstrip("\n")), **settings)

    return one_tool
