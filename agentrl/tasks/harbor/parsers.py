"""Verdicts of the first Terminal-Bench: read in what `run-tests.sh` wrote, as the task's `parser_name` says.

Its exit code says nothing where it ends with a command that always succeeds.
"""

import re
from collections.abc import Callable, Mapping

from agentrl.containers import Done
from agentrl.core.errors import InfraError

SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE | re.IGNORECASE)
LINE = re.compile(r"^(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR):? +\S", re.MULTILINE)
COUNTS = re.compile(r"\b([1-9]\d*) (passed|failed|errors?|xpassed)\b")
LAST = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s\b.*$", re.MULTILINE)
BAD = {"FAILED", "XPASS", "ERROR", "failed", "error", "errors", "xpassed"}
COLOURS = re.compile(r"\x1b\[[\d;]*m")


def by_exit_code(done: Done) -> float:
    """1 for 0."""
    return float(done.code == 0)


def by_pytest(done: Done) -> float:
    """1 where pytest's summary, or its last line, has tests and none that failed. Raises InfraError without both."""
    text = COLOURS.sub("", done.output)
    start = SUMMARY.search(text)
    found = LINE.findall(text, start.end()) if start else []
    for counts in LAST.findall(text):
        found += [kind for _, kind in COUNTS.findall(counts)]
    if not found:
        raise InfraError("the tests ended without a summary of pytest")
    return float(not BAD & set(found))


def by_marks(name: str, right: str = "PASSED") -> Callable[[Done], float]:
    """A verdict between two lines."""
    first, last = f"{name} results starts here", f"{name} results ends here"

    def read(done: Done) -> float:
        for text in (done.stdout, done.output):
            _, begun, rest = text.partition(first)
            verdict, ended, _ = rest.rpartition(last)
            if begun and ended:
                return float(verdict.strip() == right)
        raise InfraError(f"the tests ended without {name} results")

    return read


def by_swelancer(done: Done) -> float:
    """1 for the words of success alone. Raises InfraError without words."""
    text = done.output.lower()
    failed, passed = "swe lancer failure" in text, "swe lancer success" in text
    if not failed and not passed:
        raise InfraError("the tests ended without a result of SWE-Lancer")
    return float(passed and not failed)


PARSERS: Mapping[str, Callable[[Done], float]] = {
    "exit code": by_exit_code,
    "pytest": by_pytest,
    "swebench": by_marks("SWEBench"),
    "sweperf": by_marks("SWE-Perf"),
    "mlebench": by_marks("MLEBench", "ALL TESTS PASSED"),
    "swelancer": by_swelancer,
}
"""By `parser_name`; a task without one has the exit code."""
