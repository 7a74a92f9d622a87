"""Reads the reward of a task's tests: in the files that they leave, or in what they write.

Of the files, `reward.json` comes before `reward.txt`. A script without a reward is a broken one, whatever its exit
code. The tasks of the first Terminal-Bench name a parser instead:
there the exit code says nothing where `run-tests.sh` ends with a command that always succeeds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.containers import Done
from agentrl.core.errors import InfraError, last_line
from agentrl.tasks.format import Verdict

SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE | re.IGNORECASE)
LINE = re.compile(r"^(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR):? +\S", re.MULTILINE)
COUNTS = re.compile(r"\b([1-9]\d*) (passed|failed|errors?|xpassed)\b")
LAST = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s\b.*$", re.MULTILINE)
BAD = {"FAILED", "XPASS", "ERROR", "failed", "error", "errors", "xpassed"}
COLOURS = re.compile(r"\x1b\[[\d;]*m")


SHOWN_CHARACTERS = 200
MAX_FILE_BYTES, MAX_REWARD = 2**20, 1e300
"""Limits of a file and of a reward: the agent may have made it."""
NUMBERS, NUMBER = "reward.json", "reward.txt"


def read_numbers(logs: Path, code: int, output: str) -> dict[str, float]:
    """The numbers in files in `logs`. Raises InfraError where they say nothing: the tests did not get that far."""
    for name in (NUMBERS, NUMBER):
        if (logs / name).is_file():
            return _numbers(logs / name)
    how = f"with exit code {code}" if code else "well"
    words = f": {last_line(output)[:SHOWN_CHARACTERS]}" if code else ""
    raise InfraError(f"the tests ended {how} and wrote neither {NUMBER} nor {NUMBERS} to /logs/verifier{words}")


def mean(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each number's mean over the steps; a step without it counts as 0."""
    return {name: sum(step.get(name, 0.0) for step in steps) / len(steps) for step in steps for name in step}


def verdict_on(scores: Mapping[str, float], output: str) -> Verdict:
    """`reward`, or the mean where no number is named so."""
    reward = scores.get("reward", sum(scores.values()) / len(scores))
    return Verdict(reward, dict(scores) if len(scores) > 1 else {}, output)


def _numbers(file: Path) -> dict[str, float]:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise InfraError(f"{file.name} of the tests has more than {MAX_FILE_BYTES >> 10} KiB")
    text = file.read_text(errors="replace").strip()
    try:
        parsed = float(text) if file.name == NUMBER else json.loads(text)
    except (ValueError, RecursionError):
        held = f"holds {text[:60]!r} and no number" if file.name == NUMBER else "is no JSON"
        raise InfraError(f"{file.name} of the tests {held}") from None
    values = parsed if isinstance(parsed, Mapping) else {"reward": parsed}
    found = {str(name): value for name, value in values.items() if isinstance(value, int | float)}
    numbers = {name: float(value) for name, value in found.items() if abs(value) <= MAX_REWARD}
    if not numbers or len(numbers) < len(found):
        raise InfraError(f"{file.name} of the tests holds no finite numbers: {str(parsed)[:60]}")
    return numbers


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
    "exit code": lambda done: float(done.code == 0),
    "pytest": by_pytest,
    "swebench": by_marks("SWEBench"),
    "sweperf": by_marks("SWE-Perf"),
    "mlebench": by_marks("MLEBench", "ALL TESTS PASSED"),
    "swelancer": by_swelancer,
}
"""By `parser_name`; a task without one has the exit code."""
