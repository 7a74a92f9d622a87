"""Ready-made reward functions, for `reward.custom_reward_function.name=agentrl.rewards.scorers:<function>`."""

import re
from decimal import Decimal
from typing import Any

from agentrl.rewards.gym import score_answer

# A minus counts as a sign unless it follows a digit, as in "10-3".
NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def final_number(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1.0 when the last number of the model's words equals the ground truth, 0.0 otherwise; "1,234.0" equals "1234"."""
    found = last_number(solution_str)
    return float(found is not None and found == last_number(str(ground_truth)))


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None when there is none."""
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def reasoning_gym(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """reasoning-gym's own verdict, 0 to 1, for rows of the task reasoning_gym.

    The answer is what stands in the last <answer> tag, else after the last "####", else the last line.
    """
    return score_answer(extra_info["reasoning_gym"], extract_answer(solution_str))


def extract_answer(solution: str) -> str:
    """The part of the model's words that is its answer."""
    tagged = re.findall(r"<answer>(.*?)</answer>", solution, re.DOTALL)
    if tagged:
        return str(tagged[-1]).strip()
    _, mark, after = solution.rpartition("####")
    lines = (after if mark else solution).strip().splitlines()
    return lines[0 if mark else -1].strip() if lines else ""
