"""A sentence for each metric, from meanings.yaml: for the viewer, and for the page that lists them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from agentrl.core.foreign import read_beside

CHOICE = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True)
class Meaning:
    """Sentence of some metrics; `pattern` matches their names."""

    names: list[str]
    pattern: re.Pattern[str]
    sentence: str
    problem: str = ""


def meaning_of(name: str) -> Meaning | None:
    """The meaning of a metric; of a `val/` metric that of the figure which it repeats. None for an unknown one."""
    found = next((one for _, meanings, _ in sections() for one in meanings if one.pattern.fullmatch(name)), None)
    if found is not None or not name.startswith("val/"):
        return found
    parts = name.split("/")[1:]
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    return next((one for tail in tails for full in (tail, f"rollout/{tail}") if (one := meaning_of(full))), None)


@cache
def sections() -> list[tuple[str, list[Meaning], str]]:
    """(title, meanings, note) of each part of the file."""
    parts = read_beside(__file__, "meanings.yaml")["sections"]
    return [(part["title"], [*_meanings(part["metrics"])], part.get("note", "")) for part in parts]


def _meanings(metrics: dict[str, list[str]]) -> Iterator[Meaning]:
    for written, texts in metrics.items():
        parts = [part.split(",") for part in CHOICE.split(written)]
        names = ["".join(choice) for choice in product(*parts)]
        pattern = "|".join(re.sub(r"<\w+>", "[^/]+", name) for name in names)
        yield Meaning(names, re.compile(pattern), *texts)
