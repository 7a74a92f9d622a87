"""Reads the reward that a task's tests left, in the format's order.

`reward.json` comes before `reward.txt`; a report `ctrf.json` counts where neither is there; then the exit code, of
which only a failure says something: a script that ends well without a reward is a broken one.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.tasks.format import Verdict

NUMBERS, NUMBER, REPORT = "reward.json", "reward.txt", "ctrf.json"


def read_reward(logs: Path, code: int, output: str, *, by_exit_code: bool = False) -> Verdict:
    """The verdict on files in `logs` and the exit code of the tests. Raises InfraError where they say nothing."""
    if by_exit_code:
        return Verdict(float(code == 0), output=output)
    for name, read in ((NUMBERS, _numbers), (NUMBER, _number), (REPORT, _report)):
        if (logs / name).is_file():
            return _verdict(read(logs / name), output)
    if code:
        return Verdict(0.0, output=f"{output}\n(the tests ended with exit code {code} and wrote no reward)".lstrip())
    raise InfraError(f"the tests ended well and wrote neither {NUMBER} nor {NUMBERS} to /logs/verifier")


def _verdict(scores: dict[str, float], output: str) -> Verdict:
    """`reward`, or the mean where no number is named so."""
    reward = scores.get("reward", sum(scores.values()) / len(scores))
    return Verdict(reward, scores if len(scores) > 1 else {}, output)


def _number(file: Path) -> dict[str, float]:
    text = file.read_text(errors="replace").strip()
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
    numbers = {str(name): float(value) for name, value in values.items() if isinstance(value, int | float)}
    if not numbers or not all(math.isfinite(value) for value in numbers.values()):
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


def _parsed(file: Path) -> Any:
    try:
        return json.loads(file.read_text(errors="replace"))
    except ValueError:
        raise InfraError(f"{file.name} of the tests is no JSON") from None
