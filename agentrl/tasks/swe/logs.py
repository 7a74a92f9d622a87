"""Statuses of tests in what test programs write.

Invariant: a name's last line counts, and lines of a later pattern come after those of an earlier one.
"""

import re
from collections.abc import Mapping, Sequence

from agentrl.core.errors import UserError

NAMES = "FAIL_TO_PASS", "PASS_TO_PASS"
"""Columns with lists of tests."""
STATUS = "(?P<status>PASSED|FAILED|SKIPPED|ERROR|XFAIL)"
BEGIN, BLANK = r"^[ \t]*(?P<test>", r"[ \t]+"
PYTEST = (rf"^(?P<test>\S+){BLANK}{STATUS}(?=\s|$)", rf"^{STATUS}{BLANK}(?P<test>\S+)")
FORMATS = {
    **dict.fromkeys(("pytest", "pytest_options", "pytest_v2", "seaborn", "matplotlib"), PYTEST),
    "django": (
        rf"{BEGIN}.+?) \.\.\. .*\n(?:(?!.* \.\.\. ).*\n)*?[ \t]*(?P<status>ok)",
        rf"{BEGIN}.+?) \.\.\. +(?P<status>ok|OK|FAIL|ERROR|skipped)",
    ),
    "sympy": (r"^_+ (?P<test>.*\.py:.*) (?P<status>_+)$", rf"{BEGIN}test_\S+).* (?P<status>ok|F|E)[ \t]*$"),
    "gotest": (r"^[ \t]*--- (?P<status>PASS|FAIL|SKIP): (?P<test>.+) \(.+\)$",),
    "cargo": (r"^test (?P<test>\S+) +\.\.\. +(?P<status>\w+)$",),
    "summary": (rf"^{STATUS}{BLANK}.*?::(?P<test>.+?)(?: - .*)?$",),
}
"""Name, as sets give it after `parse_log_`: patterns of lines."""
PASSED, SKIPPED = {"PASSED", "XFAIL", "ok", "OK", "PASS"}, {"SKIPPED", "skipped", "SKIP"}
COLOURS = re.compile(r"\x1b\[[\d;]*m|\r")
FOLDER = re.compile(r"\[/(?!/)[^*\]]*/([^/\]]*)\]")
"""A path as a parameter: some sets keep its last part alone."""


def format_of(name: str) -> str:
    """The format that a set's name of a parser means. Raises UserError."""
    short = name.removeprefix("parse_log_")
    if short not in FORMATS:
        raise UserError(f"nothing reads logs of {name!r}; there are {', '.join(FORMATS)}")
    return short


def statuses(log: str, kind: str) -> dict[str, str]:
    """Test -> status, of those that the log names."""
    text, found = COLOURS.sub("", log), {}
    for pattern in FORMATS[kind]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            for name in (match["test"], FOLDER.sub(r"[/\1]", match["test"])):
                found[name] = match["status"]
    return found


def summary(log: str) -> dict[str, str]:
    """Test, without its file, -> status, of pytest's short summary."""
    found = statuses(log.partition("short test summary info")[2], "summary")
    return {name.replace("::", "."): status for name, status in found.items()}


def shares(log: str, kind: str, wanted: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The share of each list of tests that passed. Tests that passed before may be skipped."""
    found = statuses(log, kind)
    fine = {"PASS_TO_PASS": PASSED | SKIPPED}
    passed = {key: [found.get(name) in fine.get(key, PASSED) for name in names] for key, names in wanted.items()}
    return {key.lower(): sum(each) / len(each) for key, each in passed.items() if each}
