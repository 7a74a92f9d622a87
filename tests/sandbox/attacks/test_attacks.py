"""Every attack is contained, in every tier that starts on this host, as root and as an ordinary user."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.attacks import launch
from tests.sandbox.attacks.launch import USERS

pytestmark = [pytest.mark.timeout(900), pytest.mark.integration]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with launch.stage() as folder:
        yield folder


def judge(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """All were contained; the line about the tier. A tier that cannot start is skipped, by name and with its reason."""
    start, *attacks = lines
    if not start["started"]:
        pytest.skip(f"{start['tier']} does not start here: {start['why']} (fix: {start['fix']})")
    assert attacks
    assert [attack for attack in attacks if attack["contained"] is False] == []
    for attack in attacks:
        if attack["contained"] is None:
            warnings.warn(f"{attack['family']}, {attack['name']}: not tried, {attack['why']}", stacklevel=2)
    return start


@pytest.mark.parametrize(("tier", "user"), [("namespace", "user"), ("bwrap", "root")])
def test_contained(folder: Path, tier: str, user: str) -> None:
    """Each tier once; `test_all_contained` has each tier with each user."""
    judge(launch.attack(folder, tier, user if user in USERS else USERS[0]))


def test_contained_where_docker_refuses_namespaces(folder: Path) -> None:
    start = judge(launch.attack(folder, "docker", "user"))
    assert (start["tier"], start["refused"]) == ("landlock", ["namespace", "bwrap"])


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("situation", list(launch.SITUATIONS))
def test_all_contained(folder: Path, situation: str, user: str) -> None:
    judge(launch.attack(folder, situation, user, "--slow"))


def test_the_suite_can_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without isolation the same attacks get through: what they look for is there to be found."""
    monkeypatch.setitem(launch.SITUATIONS, "none", ("--tier", "none", "--only", "5 files"))
    _, *attacks = launch.attack(folder, "none", "user")
    assert any("secret" in attack["why"] for attack in attacks if not attack["contained"])
