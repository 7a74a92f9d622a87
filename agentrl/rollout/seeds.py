"""One seed for each request, which depends on the request and not on time."""

from hashlib import blake2b


def seed_for(base: int | None, *what: object) -> int:
    """63-bit seed for (base, what...); the same on every machine and in every process."""
    text = "/".join(str(part) for part in (base, *what))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
