import threading

import pytest

from agentrl.core.errors import UserError
from agentrl.tools import function_tool
from agentrl.trajectory.trajectory import Outcome

FILE = '''
import threading
from typing import Literal, Optional
from agentrl.tools import ToolResponse, function_tool

@function_tool
def add(a: int, b: int = 1, unit: Optional[Literal["m", "km"]] = None) -> str:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
        unit: What they measure.

    Returns:
        The sum.
    """
    return f"{a + b} {unit or ''}".strip()

@function_tool("where")
async def place(names: list[str]):
    """Find places.

    Args:
        names: Names of places.
    """
    return {"found": names}, 0.5, {"n": len(names)}

@function_tool(schema={"type": "function", "function": {"name": "thread", "description": "Names the thread."}})
def anything(**kwargs):
    return ToolResponse(text=f"{threading.current_thread() is threading.main_thread()} {sorted(kwargs)}")

alias = add

def helper():
    """No tool."""
'''


@pytest.fixture
def tools(write, load):
    return load(None, write("functions.py", FILE))


def test_schemas_come_from_docstring_and_hints(tools):
    add, where, thread = (schema["function"] for schema in tools.schemas())
    assert add["name"] == "add"
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["required"] == ["a"]
    assert add["parameters"]["properties"]["a"] == {"type": "integer", "description": "The first number."}
    assert "return" not in add
    assert where["name"] == "where"
    assert where["parameters"]["properties"]["names"]["items"] == {"type": "string"}
    assert thread["name"] == "thread"


async def test_calls_sync_async_and_every_return(tools):
    session = tools.open("k", {}, None)
    assert (await session.call("add", {"a": 2, "b": 3, "unit": "km"})).text == "5 km"
    found = await session.call("where", {"names": ["here"]})
    assert (found.text, found.reward, found.metrics) == ('{"found": ["here"]}', 0.5, {"n": 1})
    assert (await session.call("thread", {"x": 1, "y": 2})).text == "False ['x', 'y']"
    await session.release()


async def test_bad_arguments_are_the_model_s_mistake(tools):
    session = tools.open("k", {}, None)
    for arguments in ({}, {"a": "two"}, {"a": 1, "c": 3}, {"a": 1, "unit": "mile"}):
        assert (await session.call("add", arguments)).outcome is Outcome.MODEL_ERROR
    made_up = await session.call("add", {"a": 1, "c": 3})
    assert made_up.text == "Error: wrong arguments for 'add': parameter 'c' does not exist (known: a, b, unit)."


def test_the_function_stays_a_function():
    @function_tool
    def double(x: int) -> int:
        """Double.

        Args:
            x: A number.
        """
        return 2 * x

    assert double(4) == 8
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('@function_tool\ndef f(*args):\n    """D."""\n', r"@function_tool f: \*args cannot be written"),
        ('@function_tool\ndef f(**kw):\n    """D."""\n', r"@function_tool f: \*\*kw cannot be written"),
        ("@function_tool\ndef f(x: int):\n    return x\n", "@function_tool f: .*docstring"),
        (
            '@function_tool\ndef f(x):\n    """D.\n\n    Args:\n        x: X.\n    """\n',
            "@function_tool f: .*type hint",
        ),
        ('@function_tool\ndef f(x: int):\n    """D."""\n', "@function_tool f: .*x"),
        ("x = 1\n", "has no function marked @function_tool"),
        ("@function_tool(schema={})\ndef f():\n    pass\n", "@function_tool f: function is missing"),
    ],
)
def test_functions_that_cannot_be_tools(write, load, source, words):
    path = write("functions.py", "from agentrl.tools import function_tool\n" + source)
    with pytest.raises(UserError, match=words) as caught:
        load(None, path)
    assert "\n" not in str(caught.value)


def test_a_name_that_the_yaml_has_already(write, load):
    write(
        "mytool.py",
        "from agentrl.tools import BaseTool\n"
        "class Tool(BaseTool):\n    def execute(self, i, p, **k):\n        return 1\n",
    )
    schema = "{type: function, function: {name: add, description: d}}"
    yaml = write("tools.yaml", f"tools:\n  - {{class_name: mytool.Tool, tool_schema: {schema}}}\n")
    with pytest.raises(UserError, match="a tool named 'add' is in .*tools.yaml: tools.0. already: rename one"):
        load(yaml, write("functions.py", FILE))
