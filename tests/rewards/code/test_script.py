"""Test scripts taken apart: no literal that an answer is compared with goes into the sandbox."""

import pytest

from agentrl.core.errors import UserError
from agentrl.rewards.code.script import TestScript


@pytest.mark.parametrize(
    ("source", "inside", "operators"),
    [
        ("assert f(2) == 4711", "r(0, f(2))", ["Eq"]),
        ("assert 4711 == f(2)", "r(0, f(2))", ["Eq"]),
        ("assert 4711 < f(2), 'more than 4711'", "r(0, f(2))", ["Gt"]),
        ("assert f(2) == [4711, (-1, {'a': None})]", "r(0, f(2))", ["Eq"]),
        ("assert f(2) is None", "r(0, f(2))", ["Is"]),
        ("assert f(2) in (4711, 4712)", "r(0, f(2))", ["In"]),
        ("assert f(2) == 4711 and g() != 4711", "r(0, f(2))\nr(1, g())", ["Eq", "NotEq"]),
        ("assert abs(f(2) - x) < 4711", "r(0, abs(f(2) - x))", ["Lt"]),
        ("assert f(2)", "r(0, not not f(2))", ["Is"]),
        ("assert not f(2)", "r(0, not not not f(2))", ["Is"]),
        ("assert f(2) == y", "r(0, f(2), (y,), lambda a, b: a == b)", ["Eq"]),
    ],
)
def test_what_goes_in(source: str, inside: str, operators: list[str]) -> None:
    script = TestScript(source, "r")
    assert script.source == inside
    assert [check.operator for check in script.checks] == operators
    assert "4711" not in script.source


def test_reports_must_be_right_and_complete() -> None:
    script = TestScript("assert f(1) == 1\nfor i in range(3):\n    assert f(i) == 2", "r")
    assert script.passes([[0, 1], [1, 2], [1, 2]])
    assert script.passes([[0, 1]]), "a loop may have nothing to do"
    assert not script.passes([[1, 2]]), "an assert at the top is always reached"
    assert not script.passes([[0, 1], [1, 3]])
    assert not script.passes([])
    assert not TestScript("def check():\n    assert f() == 1", "r").passes([]), "something must have been checked"


@pytest.mark.parametrize(
    "forged", [[[0]], [[9, 1]], [[0, {"list": 5}]], [["0", 1]], [[0, {}]], [[0, 1, 1]], [None], [[0, {"x": 1}]], 5]
)
def test_forged_reports_fail(forged: list) -> None:
    assert not TestScript("assert f() == 1", "r").passes(forged)


def test_a_script_that_is_no_python_is_the_rows_fault() -> None:
    with pytest.raises(UserError, match="assert_case is no Python"):
        TestScript("assert (", "r")
