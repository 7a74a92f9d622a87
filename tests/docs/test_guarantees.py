"""docs/guarantees.md has the failures that the tests name."""

from pathlib import Path

from tests.guarantees import page

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make reference`"
    assert page().count("::test_") >= 75
