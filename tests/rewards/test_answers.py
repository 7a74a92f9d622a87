import pytest

from agentrl.rewards.answers import final_answer, same_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{3}, no: \boxed{\frac{1}{2}}. 7", r"\frac{1}{2}"),
        (r"\boxed{unclosed", "unclosed"),
        ("#### 5 \nthen #### 1,234\n99", "1,234"),
        ("It is 3 plus 4, so 7.", "7"),
        ("3-5", "5"),
        ("minus: -5", "-5"),
        ("10 to 12, more or less", "12"),
        ("The price is $1,200.50.", "1,200.50"),
        (".5", ".5"),
        ("3/4 of it", "3/4"),
        ("no number here", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("1,000.0", "1000", True),
        ("$18", "18", True),
        ("72.", " 72", True),
        ("0.5", "1/2", True),
        ("50%", "50", True),
        ("7", "7.1", False),
        ("-3", "3", False),
        ("Paris", " paris.", True),
        ("Paris", "London", False),
        ("1e999999999", "5", False),
        ("1/0", "1/0", True),
    ],
)
def test_same_answer(a, b, same):
    assert same_answer(a, b) is same
