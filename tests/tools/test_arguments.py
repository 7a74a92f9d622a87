import pytest

from agentrl.core.json_schema import WrongSchema
from agentrl.tools.arguments import ArgumentCheck

PARAMETERS = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1},
        "action": {"enum": ["put", "take"]},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "size": {"type": ["integer", "string"]},
    },
    "required": ["amount", "action"],
    "additionalProperties": False,
}
RIGHT = {"amount": 2, "action": "put"}


@pytest.fixture(scope="module")
def check():
    return ArgumentCheck("move", PARAMETERS)


def test_right_arguments_pass(check):
    assert check.complaint(RIGHT) is None
    assert check.complaint(RIGHT | {"when": None, "items": [{"name": "n"}], "size": "big"}) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "put"}, "parameter 'amount' is missing (expected integer)"),
        ({"amount": 1}, "parameter 'action' is missing (expected one of 'put', 'take')"),
        (RIGHT | {"amount": "two"}, "parameter 'amount' must be integer, got string 'two'"),
        (RIGHT | {"amount": 0}, "parameter 'amount': 0 is less than the minimum of 1"),
        (RIGHT | {"action": "throw"}, "parameter 'action' must be one of 'put', 'take', got string 'throw'"),
        (RIGHT | {"when": 5}, "parameter 'when' must be string or null, got integer 5"),
        (RIGHT | {"items": [{"name": "a"}, {"name": 3}]}, "parameter 'items[1].name' must be string, got integer 3"),
        (RIGHT | {"size": []}, "parameter 'size' must be integer or string, got array []"),
        (RIGHT | {"sise": 1}, "parameter 'sise' does not exist (known: amount, action, when, items, size)"),
        ([1], "the arguments of 'move' must be a JSON object, got array [1]"),
    ],
)
def test_the_complaint_names_the_parameter_and_what_was_expected(check, arguments, words):
    assert words in check.complaint(arguments)


def test_several_mistakes_in_one_message(check):
    complaint = check.complaint({"amount": "x", "action": "y"})
    assert "'amount'" in complaint
    assert "'action'" in complaint


def test_a_huge_value_does_not_blow_up_the_message(check):
    assert len(check.complaint(RIGHT | {"amount": "x" * 100_000})) < 300


def test_a_wrong_schema_is_found_before_the_first_call():
    with pytest.raises(WrongSchema):
        ArgumentCheck("f", {"type": "object", "properties": {"x": {"type": "int"}}})
