"""Limits as configurations write them."""


def limit_of(value: int | None) -> int | None:
    """A limit; None where null, 0 or a negative number says that there is none."""
    return value if value is not None and value > 0 else None
