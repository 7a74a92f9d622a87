"""Counts in messages."""


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 turn", "2 turns", "0 turns"; `many` where the plural is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
