"""Values on their way out of the sandbox, and what they are compared with."""

import json
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.rewards.code.harness import form
from agentrl.rewards.code.values import OPAQUE, as_expected, decode, holds

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = scalars | st.tuples(scalars, scalars) | st.frozensets(scalars, max_size=3)
plain = st.recursive(
    scalars | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(scalars, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plain)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = decode(json.loads(json.dumps(form(value))))
    assert back == value
    assert type(back) is type(value)


class Point(NamedTuple):
    x: int


class Colour(IntEnum):
    RED = 1


class Equal(list):
    def __eq__(self, other: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter([1, 2, 3])


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (Point(2), (2,)),
        (Colour.RED, 1),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (Fraction(1, 2), 0.5),
        (Decimal("2.5"), 2.5),
        (10**6000, 10**6000),
        (Equal([7]), [7]),
        ("\ud800", "\ud800"),
        (float("inf"), float("inf")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_as_their_plain_form(value: Any, seen: Any) -> None:
    back = decode(json.loads(json.dumps(form(value))))
    assert back == seen
    assert type(back) is type(seen)


def test_what_has_no_plain_form_equals_nothing() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), deque([1]), endless, lambda: 1, [object()]):
        assert decode(form(value)) is OPAQUE
    assert not holds("Eq", OPAQUE, [1])
    assert holds("NotEq", OPAQUE, [1])
    assert not holds("Lt", OPAQUE, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (5, "5\n"),
        (5, 5),
        ("abc", "abc"),
        ("abc", '"abc"'),
        ("5", "5"),
        ([1, 2], "[1,2]"),
        ((1, 2), "[1, 2]"),
        ({1: "a"}, '{"1": "a"}'),
        (True, "true"),
        (None, "null"),
        (None, None),
        (1.0, "1.0"),
        (1.0, "1"),
        ({1, 2}, "{1, 2}"),
        ("", ""),
    ],
)
def test_as_expected(value: Any, expected: Any) -> None:
    assert as_expected(value, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OPAQUE, "5"),
        (None, ""),
        (1, "true"),
        (True, "1"),
        (0, "false"),
        ([1], "[1, 2]"),
        ([True], "[1]"),
        ({"a": 1}, '{"a": 2}'),
        ("[1]", [1]),
        ([], ""),
        ("x", "y"),
    ],
)
def test_not_as_expected(value: Any, expected: Any) -> None:
    assert not as_expected(value, expected)


MODULUS = 2**61 - 1


@pytest.mark.parametrize(
    "forged",
    [
        {"set": [MODULUS * i for i in range(20_000)]},
        {"frozenset": [MODULUS * i for i in range(20_000)]},
        {"dict": [[MODULUS * i, 0] for i in range(20_000)]},
        {"list": [{"set": [{"tuple": [MODULUS * i]} for i in range(20_000)]}]},
        {"set": [{"int": hex(MODULUS * i << 2000)} for i in range(20_000)]},
        {"set": [{"tuple": [0] * 300 + [MODULUS * i]} for i in range(300)]},
        {"standard": ["OrderedDict", {"list": [{"list": [{"tuple": [MODULUS * i, 0]} for i in range(20_000)]}]}]},
    ],
    ids=["set", "frozenset", "dict", "tuples", "long", "few but large", "pairs"],
)
def test_keys_that_collide_are_refused(forged: Any) -> None:
    with pytest.raises(ValueError, match="collide"):
        decode(forged)


@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_deep_values_are_read(kind: str) -> None:
    deep: Any = 0
    for _ in range(400):
        deep = {kind: [[0, deep]] if kind == "dict" else [deep]}
    value = decode(deep)
    for _ in range(400):
        value = value[0]
    assert value == 0


def test_large_honest_tables_are_read() -> None:
    assert decode({"set": list(range(100_000))}) == set(range(100_000))
    powers = [2**i for i in range(5_000)]
    assert decode(form(set(powers))) == set(powers)
    assert len(decode({"dict": [[str(i), {"tuple": [i, i]}] for i in range(10_000)]})) == 10_000
