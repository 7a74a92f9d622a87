r"""Finds the last `\boxed{...}` of a text, in the way of each data set's scorer."""

BRACES = {"{": 1, "}": -1}


def closing(text: str, start: int) -> int | None:
    """Index of the first closing brace at or after `start` that leaves no brace open; None without one."""
    depth = 0
    for index in range(start, len(text)):
        depth += BRACES.get(text[index], 0)
        if text[index] == "}" and depth == 0:
            return index
    return None


def start_of_last(text: str, *commands: str) -> int | None:
    """Start of the last occurrence of the first of `commands` that the text contains; None without one."""
    return next((text.rfind(command) for command in commands if command in text), None)


def last_box(text: str, *commands: str) -> str | None:
    """The last box, from its command to its closing brace; None without a closed one."""
    start = start_of_last(text, *commands)
    end = None if start is None else closing(text, start)
    return None if end is None else text[start : end + 1]


def content(box: str) -> str:
    r"""The content of `\boxed{...}`. Raises AssertionError on anything else."""
    if not (box.startswith("\\boxed{") and box.endswith("}")):
        raise AssertionError(f"no \\boxed{{...}}: {box[:80]!r}")
    return box[len("\\boxed{") : -1]
