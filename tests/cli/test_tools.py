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
        ([], "name a YAML of tools"),
        (["none.yaml"], "none.yaml does not exist"),
        (["tools/calculator.yaml", "--only", "abacus"], "abacus"),
        (["tools/calculator.yaml", "--call", "abacus={}"], "--call abacus: no such tool; there are calculator"),
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
