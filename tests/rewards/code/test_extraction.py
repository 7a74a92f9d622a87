"""The code in a model's words, as verl finds it."""

import pytest

from agentrl.rewards.code import extract_code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("```python\na\n```", "\na\n"),
        ("one ```python\na\n``` two ```python\nb\n``` end", "\nb\n"),
        ("```\nfirst\n``` and ```\nsecond\n```", "\nfirst\n"),
        ("```cpp\nint x;\n```", "int x;\n"),
        ("```c++\nint x;\n```", "c++\nint x;\n"),
        ("```js\nx\n``` then ```python\ny\n```", "\ny\n"),
        ("```python\nnever closed", "\nnever closed"),
        ("```\nnever closed", "\nnever closed"),
        ("```one line```", "one line"),
        ("no code at all", None),
        ("", None),
        ("`inline`", None),
    ],
)
def test_which_block_counts(words: str, code: str | None) -> None:
    assert extract_code(words) == code


def test_blocks_of_another_language() -> None:
    words = "```python\nprint(1)\n``` or ```cpp\nint main() {}\n```"
    assert extract_code(words, "cpp") == "\nint main() {}\n"
