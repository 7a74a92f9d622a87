"""constraints.txt: one version for every requirement of pyproject.toml, on each Python and system."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [
    requirement
    for line in [
        *PROJECT["dependencies"],
        *(line for lines in PROJECT["optional-dependencies"].values() for line in lines),
    ]
    if canonicalize_name((requirement := Requirement(line)).name) != "agentrl"
]
LOCKED = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PYTHONS = ["3.11", "3.12", "3.13"]


def versions(name: str, environment: dict[str, str]) -> list[str]:
    same = (locked for locked in LOCKED if canonicalize_name(locked.name) == canonicalize_name(name))
    return [
        str(locked.specifier).removeprefix("==")
        for locked in same
        if locked.marker is None or locked.marker.evaluate(environment)
    ]


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_has_one_version_in_its_range(python: str, system: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": system}
    for asked in ASKED:
        if asked.marker is None or asked.marker.evaluate(environment):
            (version,) = versions(asked.name, environment)
            assert asked.specifier.contains(version, prereleases=True), f"{asked}: run make lock"


def test_the_lock_names_versions_only() -> None:
    assert all(str(locked.specifier).startswith("==") and locked.url is None for locked in LOCKED)
