import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.core.prefixes import common_length


@given(st.lists(st.integers(0, 1), max_size=200), st.lists(st.integers(0, 1), max_size=200), st.integers(0, 200))
def test_common_length(a: list[int], b: list[int], limit: int) -> None:
    expected = 0
    while expected < min(limit, len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_length(a, b, limit) == expected


@pytest.mark.parametrize("changed", [0, 15, 16, 100, 499])
def test_common_length_of_long_sequences(changed: int) -> None:
    a = list(range(500))
    assert common_length(a, [*a[:changed], -1, *a[changed + 1 :]], 500) == changed
    assert common_length(a, a, 450) == 450
