"""Rows' test cases: what is read, what is refused."""

import json
from typing import Any

import numpy as np
import pytest

from agentrl.core.errors import UserError
from agentrl.rewards.code import read_cases


def test_as_a_mapping_and_as_json_text() -> None:
    given = {"inputs": ["1\n"], "outputs": ["2\n"], "fn_name": None}
    for form in (given, json.dumps(given)):
        cases = read_cases(form)
        assert (cases.inputs, cases.outputs, cases.fn_name) == (["1\n"], ["2\n"], None)


def test_arrays_as_parquet_gives_them() -> None:
    cases = read_cases({"inputs": np.array(["1", "2"]), "outputs": np.array(["1", "2"]), "assert_case": None})
    assert len(cases) == 2
    assert len(read_cases({"assert_case": np.array(["assert f() == 1"])})) == 1


def test_asserts_need_no_inputs() -> None:
    cases = read_cases({"assert_case": ["assert f() == 1", "assert f() != 2"]})
    assert len(cases) == 2
    assert len(cases.first(1).asserts) == 1


def test_arguments_line_by_line() -> None:
    cases = read_cases({"inputs": ['[1, 2]\n"x"\nnull', "", [[1, 2], 3]], "outputs": [0, 0, 0], "fn_name": "f"})
    assert cases.arguments(0) == [[1, 2], "x", None]
    assert cases.arguments(1) == []
    assert cases.arguments(2) == [[1, 2], 3]


@pytest.mark.parametrize(
    "given",
    [None, 42, "42", "no json", {}, {"inputs": ["1"]}, {"inputs": ["1"], "outputs": []}, {"inputs": [], "outputs": []}],
)
def test_what_is_no_set_of_cases(given: Any) -> None:
    with pytest.raises(UserError, match="reward_model.ground_truth"):
        read_cases(given)


def test_arguments_that_are_no_json() -> None:
    with pytest.raises(UserError, match=r"inputs\[0\] is not one JSON value a line"):
        read_cases({"inputs": ["x y"], "outputs": [1], "fn_name": "f"}).arguments(0)
