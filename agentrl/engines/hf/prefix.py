"""Finds a cached sequence that begins like a given prompt, in time that depends on the prompt's length alone.

Each sequence is filed under a running hash of every whole block of its last prompt. A hash only names a candidate: the
tokens themselves are compared before anything is shared.
"""

from collections.abc import Iterator, Sequence

from agentrl.engines.hf.slot_pool import CachedSequence

BLOCK_TOKENS = 16


class PrefixIndex:
    """Sequences by the blocks at the start of their prompts."""

    def __init__(self) -> None:
        self.by_prefix: dict[int, dict[CachedSequence, None]] = {}  # the dict is a set that keeps its order
        self.prefixes: dict[CachedSequence, list[int]] = {}

    def add(self, sequence: CachedSequence) -> None:
        """File a sequence under its current tokens."""
        self.remove(sequence)
        self.prefixes[sequence] = list(_prefixes(sequence.tokens, sequence.adapter))
        for prefix in self.prefixes[sequence]:
            self.by_prefix.setdefault(prefix, {})[sequence] = None

    def remove(self, sequence: CachedSequence) -> None:
        for prefix in self.prefixes.pop(sequence, ()):
            sequences = self.by_prefix[prefix]
            del sequences[sequence]
            if not sequences:
                del self.by_prefix[prefix]

    def clear(self) -> None:
        self.by_prefix.clear()
        self.prefixes.clear()

    def find(self, tokens: Sequence[int], adapter: object = None) -> CachedSequence | None:
        """A sequence of the adapter that shares the most blocks with `tokens`, if possible one that has computed them;
        None: none."""
        found: dict[CachedSequence, None] = {}
        depth = 0
        for prefix in _prefixes(tokens, adapter):
            sequences = self.by_prefix.get(prefix)
            if sequences is None:
                break
            found, depth = sequences, depth + BLOCK_TOKENS
        return next((sequence for sequence in found if sequence.cached >= depth), next(iter(found), None))


def _prefixes(tokens: Sequence[int], adapter: object) -> Iterator[int]:
    value = hash(adapter)
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        value = hash((value, *tokens[end - BLOCK_TOKENS : end]))
        yield value
