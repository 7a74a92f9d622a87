"""A release has one version, named wherever somebody looks for it."""

import re
from datetime import date
from pathlib import Path

import yaml
from packaging.version import Version

from agentrl import __version__

ROOT = Path(__file__).parents[2]
HEADINGS = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_changelog_begins_with_this_version() -> None:
    assert HEADINGS[0][0] == __version__


def test_versions_of_the_changelog_go_back_in_time() -> None:
    versions = [Version(version) for version, _ in HEADINGS]
    assert versions == sorted(versions, reverse=True)
    dates = [date.fromisoformat(day) for _, day in HEADINGS if day != "unreleased"]
    assert dates == sorted(dates, reverse=True)
    assert "unreleased" not in [day for _, day in HEADINGS[1:]]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)


def test_the_newest_version_gets_security_fixes() -> None:
    supported = re.search(r"^\| (\d+\.\d+), the newest \| yes \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert supported
    assert __version__.startswith(f"{supported[1]}.")
