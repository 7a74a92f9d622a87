"""Everything that Python holds becomes JSON that UTF-8 carries; what a model may not write is named."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.json_text import complaint, whole
from agentrl.data.rows import make_row
from agentrl.rewards.answers import same_answer
from agentrl.tools.arguments import ArgumentCheck
from agentrl.tools.response import read_answer

TEXTS = st.text(st.characters(), max_size=9) | st.text(st.characters(categories=["Cs", "Ll"]), max_size=9)


@given(TEXTS)
def test_text_becomes_whole_and_stays_as_it_was_where_it_is(text: str) -> None:
    whole(text).encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert whole(text) == text


def test_two_halves_are_a_character() -> None:
    assert whole("a\ud83d\ude00\udc00b") == "a😀\ufffdb"


def test_complaints_name_the_argument() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert complaint({"x": {"y": ["\ud83d"]}}) == (
        "'x' holds half of a surrogate pair (\\ud83d): write the whole character"
    )
    assert "'n' is an integer of more than" in str(complaint({"n": 10**4300}))
    assert "'n' is too large" in str(complaint({"n": -math.inf}))
    assert "nested more than 64" in str(complaint({"n": deep}))
    assert complaint({"n": 10**300, "x": "😀\0", "l": [{}, [], None, 1.5]}) is None


def test_a_check_that_the_schema_itself_breaks_is_an_answer() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.1}}}
    assert "cannot be checked" in str(ArgumentCheck("f", schema).complaint({"n": 10**400}))


def test_a_tool_may_return_more_digits_than_python_prints() -> None:
    assert read_answer(10**5000, str).text == "<an integer of 16610 bits>"
    assert "16610 bits" in read_answer({"x": [10**5000]}, str).text


def test_rows_come_without_halves() -> None:
    record = {"prompt": [{"role": "user", "content": "a\ud83d"}], "reward_model": {"ground_truth": "\udc00"}}
    row = make_row(record, "r:1")
    assert (row.prompt[0]["content"], row.ground_truth) == ("a\ufffd", "\ufffd")


def test_a_number_of_any_length_is_compared() -> None:
    assert same_answer("9" * 5000, "9" * 5000)
    assert not same_answer("9" * 5000, "12")
