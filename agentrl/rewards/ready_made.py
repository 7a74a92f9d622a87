"""The reward functions of well-known data sets, by `data_source`: their rows need none named in the configuration.

Compatibility layers offer them.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from agentrl.config.schema import Data
from agentrl.core.compatibility import layers

SOURCE_FUNCTION = "agentrl.rewards.sources:compute_score"
"""Chooses among ready-made functions, row by row."""


def ready_made_functions() -> Mapping[str, Sequence[str]]:
    """By function, the data sets that it is for; a trailing * stands for any ending."""
    return {function: names for layer in layers() for function, names in layer.scorers().items()}


def function_for(data_source: str) -> str | None:
    """The ready-made reward function for rows of a data set; None where there is none."""
    ready_made = ready_made_functions().items()
    return next((function for function, names in ready_made if any(fnmatchcase(data_source, n) for n in names)), None)


def known_source(data: Data) -> bool:
    """Whether the first row comes from one of those data sets; one that cannot be read does not."""
    from agentrl.data.dataset import first_row

    row = first_row(data)
    return row is not None and function_for(row.data_source) is not None
