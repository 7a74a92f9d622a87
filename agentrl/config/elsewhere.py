"""Names of keys in TRL, Hugging Face's trainer and OpenRLHF: they point to keys here and are never mapped."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from agentrl.core.foreign import read_beside


@dataclass(frozen=True)
class Elsewhere:
    """A name of another framework."""

    framework: str
    name: str
    keys: tuple[str, ...]
    """Keys here, of all commands; none: there is no such thing."""
    text: str
    """The difference, or the reason."""

    def pointer(self, keys: Collection[str]) -> str | None:
        """The sentence that leads to those of its keys that are among `keys`; None where none is."""
        mine = [f"`{key}`" for key in self.keys if key in keys]
        owner = f"{self.framework}'{'' if self.framework.endswith('s') else 's'} `{self.name}`"
        if not self.keys:
            return f"{owner} has no key here: {self.text}"
        note = f" ({self.text})" if self.text else ""
        return f"{owner} is {' or '.join(mine)} here{note}" if mine else None


@cache
def entries() -> tuple[Elsewhere, ...]:
    """All names, in the order of the file."""
    found = []
    for framework, names in read_beside(__file__, "names_elsewhere.yaml").items():
        for name, written in names.items():
            keys, _, text = written.partition(";")
            found.append(Elsewhere(framework, name, tuple(filter(None, keys.strip().split(", "))), text.strip()))
    return tuple(found)


def pointer(path: str, keys: Collection[str]) -> str | None:
    """Where the name `path`, or its last part, leads among `keys`; None: no framework has it, or that is the last part
    of a key here, to which the framework's does not lead."""
    leaf = path.rpartition(".")[2]
    alike = {key for key in keys if key.rpartition(".")[2] == leaf}
    named = (entry for name in (path, leaf) for entry in entries() if entry.name == name and alike <= set(entry.keys))
    return next(filter(None, (entry.pointer(keys) for entry in named)), None)
