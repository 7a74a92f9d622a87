"""Overlong prompts: dropped or cut."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.errors import UserError
from agentrl.data import filter_overlong, truncate
from agentrl.data.overlong import check_overlong
from agentrl.trajectory.row import Row

pytestmark = pytest.mark.integration


def rows(*lengths: int) -> list[Row]:
    return [Row(uid=str(i), prompt=[{"role": "user", "content": "x" * n}]) for i, n in enumerate(lengths)]


def length(row: Row) -> int:
    return len(row.prompt[0]["content"])


@pytest.mark.parametrize("workers", [1, 2])
def test_drops_what_is_over_the_limit_and_says_so(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kept = filter_overlong(rows(3, 9, 5, 6, 5), length, 5, workers=workers)
    assert [row.uid for row in kept] == ["0", "2", "4"]
    assert kept[1].uid == "2"
    assert [row.uid for row in kept[1:]] == ["2", "4"]
    assert "dropped 2 of 5 rows" in caplog.text


def test_workers_need_not_pickle_the_length_function() -> None:
    bonus = 1
    kept = filter_overlong(rows(3, 9, 5), lambda row: length(row) + bonus, 5, workers=2)
    assert [row.uid for row in kept] == ["0"]


def test_nothing_left() -> None:
    with pytest.raises(UserError, match=r"data.max_prompt_length=2 drops all of 2 rows; raise it: .* 3 tokens"):
        filter_overlong(rows(3, 9), length, 2)


@pytest.mark.parametrize(
    ("side", "expected"),
    [("left", [3, 4, 5, 6, 7]), ("right", [1, 2, 3, 4, 5]), ("middle", [1, 2, 5, 6, 7])],
)
def test_truncate(side: str, expected: list[int]) -> None:
    assert truncate([1, 2, 3, 4, 5, 6, 7], 5, side) == expected
    assert truncate([1, 2], 5, side) == [1, 2]


def test_truncation_error_names_the_ways_out() -> None:
    assert truncate([1, 2], 2, "error") == [1, 2]
    with pytest.raises(UserError, match=r"a prompt of 3 tokens is over data.max_prompt_length=2"):
        truncate([1, 2, 3], 2, "error")
    with pytest.raises(UserError, match=r"data.truncation=middel is unknown"):
        truncate([1], 2, "middel")


@given(st.lists(st.integers(), max_size=30), st.integers(0, 30), st.sampled_from(["left", "right", "middle"]))
def test_truncate_keeps_exactly_the_limit_in_order(ids: list[int], limit: int, side: str) -> None:
    cut = truncate(list(enumerate(ids)), limit, side)  # type: ignore[arg-type]
    assert len(cut) == min(limit, len(ids))
    assert cut == sorted(cut)


def test_a_row_that_is_too_long_is_named_before_the_run(caplog: pytest.LogCaptureFixture) -> None:
    many = rows(*[3] * 1000, 9, 3, 8)
    with pytest.raises(
        UserError, match=r"^1000 has a prompt of 9 tokens, and so have 1 more; data.max_prompt_length=5"
    ):
        check_overlong(many, length, 5, "error")
    with caplog.at_level(logging.WARNING):
        check_overlong(many, length, 5, "left")
        check_overlong(many, length, 9, "error")
    assert caplog.text.count("data.truncation=left cuts them") == 1


def test_few_rows_are_measured() -> None:
    counted: list[str] = []
    check_overlong(rows(*[3] * 1000), lambda row: counted.append(row.uid) or 3, 5, "error")
    assert len(counted) == 256
