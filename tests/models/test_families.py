"""docs/models.md says what is so: each family goes through `agentrl train` and `agentrl merge` again."""

from pathlib import Path

import pytest

from tests.models.families import FAMILIES
from tests.models.table import cells, page, read_page, row

pytestmark = pytest.mark.integration

PAGE = Path("docs/models.md")
QUICK = {"gemma4_moe", "qwen3_5", "deepseek_v3"}
"""Heads of two widths; a recurrent mixer and a tower; a router's bias, which is a buffer."""
REFUSED = {"ernie4_5_vl_moe"}
"""Its experts are chosen by a second kind of token types, which engines do not get."""
MAX_GAP = 1e-3


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES])
def test_a_family_does_what_the_page_says(name: str) -> None:
    facts = row(name)
    assert facts.get("gap", 0.0) < MAX_GAP, facts
    said, found = read_page(PAGE.read_text())[name], read_page(page([facts]))[name]
    assert {**said, "gap": ""} == {**found, "gap": ""}, facts
    assert (cells(facts)["trains"] == "yes") is (name not in REFUSED), facts


def test_the_page_has_every_family() -> None:
    assert list(read_page(PAGE.read_text())) == list(FAMILIES)
