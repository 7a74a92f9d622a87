"""Statuses of tests in what test programs write.

Invariant: a name's last line counts, and lines of a later pattern come after those of an earlier one.
"""

import re
from collections.abc import Mapping, Sequence

from agentrl.core.foreign import read_beside

RULES = read_beside(__file__, "rules.yaml")
PASSED, SKIPPED = {"PASSED", "XFAIL", "ok", "OK", "PASS"}, {"SKIPPED", "skipped", "SKIP"}
FAIL_TO_PASS, PASS_TO_PASS = "FAIL_TO_PASS", "PASS_TO_PASS"
COLOURS = re.compile(r"\x1b\[[\d;]*m|\r")
FOLDER = re.compile(r"\[/(?!/)[^*\]]*/([^/\]]*)\]")
"""A path as a parameter: some sets keep its last part alone."""


def statuses(log: str, kind: str) -> dict[str, str]:
    """Test -> status, of those that the log names."""
    text, found = COLOURS.sub("", log), dict[str, str]()
    for pattern in RULES["formats"][kind]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            found |= dict.fromkeys((match["test"], FOLDER.sub(r"[/\1]", match["test"])), match["status"])
    return found


def summary(log: str) -> dict[str, str]:
    """Test, without its file, -> status, of pytest's short summary."""
    found = statuses(log.partition("short test summary info")[2], "summary")
    return {name.replace("::", "."): status for name, status in found.items()}


def shares(log: str, kind: str, wanted: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The share of each list of tests that passed. Tests that passed before may be skipped."""
    found, fine = statuses(log, kind), {FAIL_TO_PASS: PASSED, PASS_TO_PASS: PASSED | SKIPPED}
    passed = {key: [found.get(name) in fine[key] for name in names] for key, names in wanted.items() if names}
    return {key.lower(): sum(each) / len(each) for key, each in passed.items()}
