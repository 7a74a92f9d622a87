"""Reads the reward that a task's tests left, in the format's order.

`reward.json` comes before `reward.txt`; a report `ctrf.json` counts where neither is there. A script without a reward
is a broken one, whatever its exit code.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.user_errors import last_line
from agentrl.tasks.format import Verdict

WORDS = 200
MOST, LARGEST = 2**20, 1e300
"""Bytes of a file, and a reward: the agent may have made it."""
NUMBERS, NUMBER, REPORT = "reward.json", "reward.txt", "ctrf.json"


def read_reward(logs: Path, code: int, output: str) -> Verdict:
    """The verdict on files in `logs`. Raises InfraError where they say nothing: the tests did not get that far."""
    for name, read in ((NUMBERS, _numbers), (NUMBER, _number), (REPORT, _report)):
        if (logs / name).is_file():
            return _verdict(read(logs / name), output)
    how = f"with exit code {code}" if code else "well"
    words = f": {last_line(output)[:WORDS]}" if code else ""
    raise InfraError(f"the tests ended {how} and wrote neither {NUMBER} nor {NUMBERS} to /logs/verifier{words}")


def _verdict(scores: dict[str, float], output: str) -> Verdict:
    """`reward`, or the mean where no number is named so."""
    reward = scores.get("reward", sum(scores.values()) / len(scores))
    return Verdict(reward, scores if len(scores) > 1 else {}, output)


def _number(file: Path) -> dict[str, float]:
    text = _text(file).strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InfraError(f"{file.name} of the tests holds {text[:60]!r} and no number")
    return {"reward": value}


def _numbers(file: Path) -> dict[str, float]:
    parsed = _parsed(file)
    values = parsed if isinstance(parsed, Mapping) else {"reward": parsed}
    found = {str(name): value for name, value in values.items() if isinstance(value, int | float)}
    numbers = {name: float(value) for name, value in found.items() if abs(value) <= LARGEST}
    if not numbers or len(numbers) < len(found):
        raise InfraError(f"{file.name} of the tests holds no finite numbers: {str(parsed)[:60]}")
    return numbers


def _report(file: Path) -> dict[str, float]:
    """A report in the Common Test Report Format: 1 where tests ran and none failed."""
    try:
        summary = _parsed(file)["results"]["summary"]
        ran, failed = summary["passed"] + summary["failed"], summary["failed"]
    except (TypeError, KeyError):
        raise InfraError(f"{file.name} of the tests has no summary") from None
    return {"reward": float(ran > 0 and failed == 0)}


def _text(file: Path) -> str:
    if file.stat().st_size > MOST:
        raise InfraError(f"{file.name} of the tests has more than {MOST >> 10} KiB")
    return file.read_text(errors="replace")


def _parsed(file: Path) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError):
        raise InfraError(f"{file.name} of the tests is no JSON") from None
