"""`agentrl tools test`: schemas shown, each tool called once."""

import pytest

from agentrl.cli.main import main
from agentrl.tools.examples import example_arguments


def test_calculator(capsys):
    assert main(["tools", "test", "tools/calculator.yaml"]) == 0
    out = capsys.readouterr().out
    assert '"description": "Work out an arithmetic expression."' in out
    assert '→ {"expression": "17 * 23"}' in out
    assert "← ok" in out
    assert "\n391\n" in out


def test_arguments_of_ones_own(capsys):
    call = 'calculator={"expression": "1/0"}'
    assert main(["tools", "test", "tools/calculator.yaml", "--call", call, "--call", "calculator={}"]) == 0
    out = capsys.readouterr().out
    assert out.count("← model_error") == 2
    assert "division by zero" in out


def test_a_tool_that_fails_by_itself(capsys):
    call = 'search={"query_list": ["x"]}'
    yaml = "tools/retrieval.yaml"  # nobody listens there
    assert main(["tools", "test", yaml, "--call", call]) == 1
    assert "infra_error" in capsys.readouterr().out


def test_functions(tmp_path, capsys):
    file = tmp_path / "functions.py"
    file.write_text(
        "from agentrl.tools import function_tool\n"
        "@function_tool\n"
        "def shout(text: str, loud: bool = True) -> str:\n"
        '    """Shout.\n\n    Args:\n        text: What.\n        loud: How.\n    """\n'
        "    return text.upper()\n"
    )
    assert main(["tools", "test", "--functions", str(file)]) == 0
    assert '→ {"text": "text"}' in (out := capsys.readouterr().out)
    assert "TEXT" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name a YAML file of tools"),
        (["none.yaml"], "none.yaml does not exist"),
        (["tools/calculator.yaml", "--only", "abacus"], "abacus"),
        (["tools/calculator.yaml", "--call", "abacus={}"], "--call abacus: no such tool; choose one of calculator"),
        (["tools/calculator.yaml", "--call", "calculator={"], "write NAME="),
    ],
)
def test_mistakes(args, words, capsys):
    assert main(["tools", "test", *args]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        ({"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}, {"a": 3}),
        ({"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}, {"a": "x"}),
        ({"properties": {"a": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "required": ["a"]}, {"a": 1.0}),
        ({"properties": {"a": {"type": "array", "items": {"type": "boolean"}}}, "required": ["a"]}, {"a": [True]}),
        ({"properties": {"a": {"default": 7, "examples": [8]}}, "required": ["a"]}, {"a": 8}),
        (
            {"properties": {"a": {"$ref": "#/$defs/P"}}, "required": ["a"], "$defs": {"P": {"const": "p"}}},
            {"a": "p"},
        ),
        ({"type": "object", "required": ["b"]}, {"b": "text"}),
    ],
)
def test_made_up_arguments(schema, made):
    assert example_arguments(schema) == made


BLOCKING = """
import time
from agentrl.tools import BaseTool

class Wait(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        time.sleep(1.2)
        return "waited"
"""


def blocking_yaml(tmp_path, config):
    (tmp_path / "waiting.py").write_text(BLOCKING)
    file = tmp_path / "tools.yaml"
    file.write_text(
        f"tools:\n  - class_name: waiting.Wait\n    config: {config}\n"
        "    tool_schema: {type: function, function: {name: wait, description: Waits.}}\n"
    )
    return str(file)


def test_a_tool_that_blocks_the_event_loop_fails(tmp_path, capsys):
    assert main(["tools", "test", blocking_yaml(tmp_path, "{timeout: 0.5}")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "blocked tool 'wait': Wait.execute blocks the event loop at waiting.py:7 (time.sleep(1.2))" in out
    assert "including its own of 0.5 s" in out
    assert "config.in_thread: true" in out


def test_in_a_thread_it_passes_and_its_timeout_counts(tmp_path, capsys):
    assert main(["tools", "test", blocking_yaml(tmp_path, "{in_thread: true}")]) == 0
    assert main(["tools", "test", blocking_yaml(tmp_path, "{in_thread: true, timeout: 0.3}")]) == 1
    assert "TimeoutError: no answer within 0.3 s" in capsys.readouterr().out
