"""Finding a row that begins like a given prompt, among any number of rows, in time that follows the prompt alone.

Each row is filed under a running hash of every whole block of the prompt it was last given. Hashes only nominate:
the tokens themselves are compared before anything is shared.
"""

from collections.abc import Iterator, Sequence

from agentrl.engines.hf.pool import Row

BLOCK = 16


class PrefixIndex:
    """Rows by the blocks that their prompts begin with."""

    def __init__(self) -> None:
        self.by_prefix: dict[int, dict[Row, None]] = {}  # a dict for a set that keeps its order
        self.prefixes: dict[Row, list[int]] = {}

    def add(self, row: Row) -> None:
        """File a row under its present tokens."""
        self.remove(row)
        self.prefixes[row] = list(_prefixes(row.tokens))
        for prefix in self.prefixes[row]:
            self.by_prefix.setdefault(prefix, {})[row] = None

    def remove(self, row: Row) -> None:
        for prefix in self.prefixes.pop(row, ()):
            rows = self.by_prefix[prefix]
            del rows[row]
            if not rows:
                del self.by_prefix[prefix]

    def clear(self) -> None:
        self.by_prefix.clear()
        self.prefixes.clear()

    def find(self, tokens: Sequence[int]) -> Row | None:
        """A row that agrees with `tokens` in as many blocks as any does: one that has computed them, if there is."""
        found: dict[Row, None] = {}
        depth = 0
        for prefix in _prefixes(tokens):
            rows = self.by_prefix.get(prefix)
            if rows is None:
                break
            found, depth = rows, depth + BLOCK
        return next((row for row in found if row.cached >= depth), next(iter(found), None))


def _prefixes(tokens: Sequence[int]) -> Iterator[int]:
    value = 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        value = hash((value, *tokens[end - BLOCK : end]))
        yield value
