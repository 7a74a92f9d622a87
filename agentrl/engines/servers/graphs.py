"""The numbers of sequences that a server captures CUDA graphs for."""

LEAST_MEMORY = {1024: 60 << 30, 512: 35 << 30, 256: 0}
"""Most sequences of a graph -> bytes of the smallest GPU for it: graphs keep the logits of all their sequences."""


def graph_sizes(sequences: int, memory: int) -> list[int]:
    """Sizes up to so many sequences, on a GPU of so many bytes (0: unknown).

    A batch is padded to the next size. That costs little, since a step mostly reads weights and cache, while each size
    costs a tenth of a second at the start.
    """
    most = min(sequences, next(most for most, least in LEAST_MEMORY.items() if not memory or memory >= least))
    steps = [1, 2, 4, 8, 16, *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, most, 128)]
    return [*(size for size in steps if size < most), most]
