"""docs/guarantees.md names tests that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| failure |")]


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:50])
def test_a_row_names_its_tests(row: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
    assert named
    for file, test in named:
        assert test in defined_in(file), f"{file}::{test}"


def test_no_row_is_lost() -> None:
    assert len(ROWS) >= 75
