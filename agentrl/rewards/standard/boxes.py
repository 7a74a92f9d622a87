r"""Finds the last `\boxed{...}` of a text, as each of the data sets' scorers does."""


def closing(text: str, start: int) -> int | None:
    """Index of the first brace at or after `start` that leaves none open; None where there is none."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    return None


def start_of_last(text: str, *commands: str) -> int | None:
    """Where the last of the first command that occurs at all begins."""
    return next((text.rfind(command) for command in commands if command in text), None)


def last_box(text: str, *commands: str) -> str | None:
    """The last box, from its command to its closing brace; None without one that is closed."""
    start = start_of_last(text, *commands)
    end = None if start is None else closing(text, start)
    return None if end is None else text[start : end + 1]


def content(box: str) -> str:
    r"""What stands in `\boxed{...}`. Raises AssertionError on anything else."""
    if not (box.startswith("\\boxed{") and box.endswith("}")):
        raise AssertionError(f"no \\boxed{{...}}: {box[:80]!r}")
    return box[len("\\boxed{") : -1]
