"""Values of Gymnasium's spaces as text, and actions out of text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.core.errors import plural

DIGITS = 4
SHOWN_CHARACTERS = 80
"""Characters of an invalid action that its message repeats."""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
COLOURED = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0?m", re.DOTALL)


def text_of(value: Any) -> str:
    """An observation as text: text as it is, numbers with few digits, a line for each name of a Dict."""
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text_of(each)}" for name, each in value.items())
    if isinstance(value, np.ndarray):
        return text_of(value.tolist())
    if isinstance(value, tuple | list):
        return ", ".join(f"[{text_of(each)}]" if isinstance(each, tuple | list) else text_of(each) for each in value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.{DIGITS}g}"
    return str(value)


def uncoloured(text: str) -> str:
    """A drawing without colours: what was coloured is in square brackets, for it may be all that marks a place."""
    return COLOUR.sub("", COLOURED.sub(r"[\1]", text))


def choices_of(space: Any, names: Sequence[str] | None) -> list[str]:
    """The actions of a Discrete space; empty for another."""
    if type(space).__name__ != "Discrete":
        return []
    first, count = int(space.start), int(space.n)
    if names:
        return list(names[:count])
    return [str(first + i) for i in range(count)]


def parse(space: Any, text: str, names: Sequence[str] | None) -> Any:
    """The action of a space that a text names. Raises ValueError, worded for the model."""
    choices = choices_of(space, names)
    if choices:
        return int(space.start) + _chosen(text, choices)
    kind = type(space).__name__
    if space is None or kind == "Text":
        return text
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        raise TypeError(f"actions of {space} are not read from text: name a function in the entry's `action`")
    numbers = NUMBER.findall(text)
    size = int(np.prod(space.shape))
    if len(numbers) != size:
        raise ValueError(f"{_shown(text)!r} has {plural(len(numbers), 'number')}; write {size}")
    value = np.array(list(map(float, numbers))).reshape(space.shape).astype(space.dtype)
    if not space.contains(value):
        raise ValueError(f"{_shown(text)!r} is outside of {space}")
    return value


def _chosen(text: str, choices: Sequence[str]) -> int:
    """The only choice that a text is, or else names as a word. Raises ValueError."""
    plain = [choice.casefold() for choice in choices]
    said = text.strip().strip("[](){}<>\"'`.!* ").casefold()
    if said in plain:
        return plain.index(said)
    named = [i for i, choice in enumerate(plain) if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text.casefold())]
    if len(named) == 1:
        return named[0]
    trouble = "names several actions" if named else "is none"
    raise ValueError(f"{_shown(text)!r} {trouble}; write one of {', '.join(choices)}")


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
