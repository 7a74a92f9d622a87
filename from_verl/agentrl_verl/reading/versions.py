"""Which version of verl a script or a YAML file was written for."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

from agentrl.config.keys import ancestors
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside

VERSIONS = ("0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
"""Those whose defaults are known, oldest first."""
VARIABLE = "AGENTRL_VERL_VERSION"
"""Environment variable: a version, and after a blank why it is this one."""
VERSION_FILE = Path("verl", "version", "version")
"""Where a checkout says which version it is."""


@dataclass(frozen=True)
class Version:
    """A version and why it is taken."""

    number: str
    """One of VERSIONS."""
    reason: str


def find_version(places: Iterable[Path], names: Iterable[str], file: str = "ppo_trainer") -> Version:
    """The version that the environment names, or else a checkout around one of `places` or the working directory, or
    else the installed verl, or else the `names` of programs and keys that are used; the newest where nothing tells.

    `file` is verl's that the keys are of. Raises UserError for a version that cannot be.
    """
    return (
        _from_environment()
        or from_checkout([*places, Path.cwd()])
        or _from_installation()
        or _from_names(list(names), "sft_trainer" if file.startswith("sft_trainer") else "ppo_trainer")
    )


def read_version(text: str, reason: str) -> Version:
    """`0.7.1`, `v0.7` or `0.8.0.dev` as one of VERSIONS; what is older or newer is the oldest or the newest of them.

    Raises UserError for what is no version.
    """
    parts = text.strip().removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise UserError(f"{text.strip()!r} is no version of verl ({reason}): choose {', '.join(VERSIONS)}")
    asked = (int(parts[0]), int(parts[1]))
    nearest = max([known for known in VERSIONS if _numbers(known) <= asked], key=_numbers, default=VERSIONS[0])
    exact = _numbers(nearest) == asked
    return Version(nearest, reason if exact else f"the nearest to {text.strip()}, {reason}")


def from_checkout(places: Iterable[Path]) -> Version | None:
    """The version of the first checkout of verl that has one of `places`, files or folders, below it."""
    for place in places:
        for folder in (place.resolve(), *place.resolve().parents):
            if (file := folder / VERSION_FILE).is_file():
                return read_version(file.read_text(encoding="utf-8", errors="replace"), str(file))
    return None


def _from_environment() -> Version | None:
    text, _, reason = os.environ.get(VARIABLE, "").strip().partition(" ")
    return read_version(text, reason or VARIABLE) if text else None


def _from_installation() -> Version | None:
    try:
        return read_version(installed_version("verl"), "the installed verl")
    except PackageNotFoundError:
        return None


def _from_names(names: Sequence[str], section: str) -> Version:
    """The version that knows most of the names, the newest of these."""
    telling = {name: span for name in names if (span := _span(name, section))}
    misses = {version: sum(version not in span for span in telling.values()) for version in VERSIONS}
    best = min(reversed(VERSIONS), key=lambda version: misses[version])
    newer = VERSIONS[VERSIONS.index(best) + 1 :]
    last = next((name for name, span in telling.items() if best in span and newer and newer[0] not in span), None)
    if last is None:
        return Version(best, "the newest, for nothing tells which")
    return Version(best, f"the last that has {last}")


def _span(name: str, section: str) -> tuple[str, ...]:
    """The versions that know a name, where these are not all; empty otherwise."""
    found = spans(section)
    return next((found[above] for above in ancestors(name) if above in found), ())


@cache
def spans(section: str) -> Mapping[str, tuple[str, ...]]:
    """By program and key of a section: the versions that have it."""
    table = read_beside(__file__, "versions.yaml")
    return dict(_each(table["programs"])) | dict(_each(table.get(section, {})))


def _each(part: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for span, names in part.items():
        first, _, last = span.partition("-")
        yield from ((name, VERSIONS[VERSIONS.index(first) : VERSIONS.index(last) + 1]) for name in names.split())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
